"""Node rows that a conv reads and reduces by edge in its own forward: ``x[edge_index[0]]``.

The source of an edge may lie on another rank, and the edges out of an own node lie on many. The
sources of a shard's edge_index are a :class:`pyg_sar.shard.local_ids.SourceRow`, which refuses what
it does not know. During a conv's forward two more operations are known. Rows read by it include
those of the halo. PyG's reductions over it run where the sources are, after one all-to-all.
Destinations are own nodes with all their in-edges, so they need nothing of the kind.

A tensor of edges without ids cannot be noticed here: ``softmax(0)`` over all edges, or their mean,
is a plain operation of torch on a plain tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import degree, scatter, softmax

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.conv.around.patching import AnyFn
from pyg_sar.conv.exchanges import Exchanges
from pyg_sar.shard.local_ids import LocalIds, SourceRow, refuse

_SPARSE: tuple[AnyFn, ...] = (
    torch.sparse_coo_tensor,
    torch.sparse_csr_tensor,
    torch.sparse_csc_tensor,
    torch.sparse_compressed_tensor,
)
"""Functions of torch that do not ask a tensor of another class what it allows."""


def _without_ids(function: AnyFn) -> AnyFn:
    """A function that refuses local ids; of the halo they would be outside of its matrix."""

    def refusing(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, LocalIds):
                refuse(type(value), function.__name__)
        return function(*args, **kwargs)

    return refusing


class Ends:
    """What is read at sources and reduced over the edges out of them."""

    def __init__(self, exchanges: Exchanges) -> None:
        self.exchanges = exchanges

    def forms(self) -> dict[AnyFn, AnyFn]:
        """PyG's functions over groups, and what they are over the edges out of a node."""
        groups: dict[AnyFn, AnyFn] = {
            scatter: self.scatter,
            softmax: self.softmax,
            degree: self.degree,
        }
        return groups | {function: _without_ids(function) for function in _SPARSE}

    def with_sources(self, values: Tensor, sources: SourceRow, dim: int) -> Tensor:
        """Node rows in dimension `dim`, own ones, with those of the halo behind them (collective).

        Raises:
            ValueError: If there is not one row per own node.
        """
        exchange = self.exchanges.of(sources.edge_index)
        num_own = exchange.shard.num_own
        if dim >= values.dim() or values.size(dim) != num_own:
            raise ValueError(
                f'expected one row per own node where rows are read at the sources of edges: '
                f'{num_own} rows in dimension {dim} (got shape {tuple(values.shape)})'
            )
        return with_halo(values.movedim(dim, 0), exchange).movedim(0, dim)

    def scatter(
        self,
        src: Tensor,
        index: Tensor,
        dim: int = 0,
        dim_size: int | None = None,
        reduce: str = 'sum',
    ) -> Any:
        """``torch_geometric.utils.scatter``."""
        if not isinstance(index, SourceRow):
            return scatter(src, index, dim, dim_size, reduce)
        rows, own, num_own, _ = self._at_sources(src.movedim(dim, 0), index, dim_size)
        return scatter(rows, own, 0, num_own, reduce).movedim(0, dim)

    def softmax(
        self,
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Any:
        """``torch_geometric.utils.softmax``."""
        if not isinstance(index, SourceRow):
            return softmax(src, index, ptr, num_nodes, dim)
        rows, own, num_own, to_given = self._at_sources(src.movedim(dim, 0), index, num_nodes)
        return to_given(softmax(rows, own, None, num_own)).movedim(0, dim)

    def degree(
        self, index: Tensor, num_nodes: int | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """``torch_geometric.utils.degree``."""
        if not isinstance(index, SourceRow):
            return degree(index, num_nodes, dtype)
        ones = torch.ones(index.numel(), dtype=dtype, device=index.device)
        return self.scatter(ones, index, 0, num_nodes)

    def _at_sources(
        self, values: Tensor, sources: SourceRow, num_nodes: int | None
    ) -> tuple[Tensor, Tensor, int, Callable[[Tensor], Tensor]]:
        """Edge values at the ranks of their sources, the own source of each, and the way back.

        Collective: one all-to-all, see :meth:`pyg_sar.conv.exchanges.Exchanges.oriented`.
        """
        num_own = self.exchanges.of(sources.edge_index).shard.num_own
        if num_nodes not in (None, num_own):
            raise ValueError(
                f'expected as many groups as own nodes where edges are grouped by their source: '
                f'{num_own} (got {num_nodes})'
            )
        oriented = self.exchanges.oriented(sources.edge_index, flip=True)
        own = oriented.edge_index.as_subclass(Tensor)[1]
        return oriented.to_oriented(values), own, num_own, oriented.to_given
