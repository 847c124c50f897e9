"""Node rows that a conv reads and reduces by edge in its own forward: ``x[edge_index[0]]``.

The source of an edge may lie on another rank, and the edges out of an own node lie on many. So the
sources of a shard's edge_index are, for the time of a conv's forward, a :class:`SourceEnds`: rows
read by it include those of the halo, and reductions over it run where the sources are. Destinations
are own nodes and edges into them are all here, so they need nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import degree, scatter, softmax

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.conv.around.patching import AnyFn
from pyg_sar.conv.exchanges import Exchanges
from pyg_sar.shard.edge_index import SOURCE_ENDS, ShardEdgeIndex


class SourceEnds(Tensor):
    """The source of every edge, int64 ``[num_edges]``; what is computed from it is plain."""

    edge_index: ShardEdgeIndex
    ends: Ends

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            kwargs = kwargs or {}
            if func is Tensor.__getitem__:
                index = args[1] if isinstance(args[1], tuple) else (args[1],)
                dim = next((i for i, each in enumerate(index) if isinstance(each, cls)), None)
                if dim is not None and not isinstance(args[0], cls):
                    values = index[dim].ends.with_sources(args[0], index[dim], dim)
                    return values[tuple(_plain(each) for each in index)]
            # By name, as PyG replaces `torch.index_select` by a function of its own.
            if getattr(func, '__name__', '') == 'index_select':
                values, dim, sources = _index_select_arguments(*args, **kwargs)
                if isinstance(sources, cls):
                    values = sources.ends.with_sources(values, sources, dim)
                    return values.index_select(dim, _plain(sources))
            return func(*(_plain(a) for a in args), **{k: _plain(v) for k, v in kwargs.items()})


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, SourceEnds) else value


def _index_select_arguments(input: Tensor, dim: int, index: Tensor) -> tuple[Tensor, int, Tensor]:
    return input, dim, index


class Ends:
    """What is read at sources and reduced over the edges out of them.

    Args:
        exchanges: The exchanges of the forward.
    """

    def __init__(self, exchanges: Exchanges) -> None:
        self.exchanges = exchanges

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """While it lasts, row 0 of an edge_index of the forward's shards is a SourceEnds."""
        shards = list(self.exchanges.shards)
        before = [shard.cache.get(SOURCE_ENDS) for shard in shards]  # of a conv around this one
        try:
            for shard in shards:
                shard.cache[SOURCE_ENDS] = self.of
            yield
        finally:
            for shard, outer in zip(shards, before, strict=True):
                if outer is None:
                    shard.cache.pop(SOURCE_ENDS, None)
                else:
                    shard.cache[SOURCE_ENDS] = outer

    def of(self, edge_index: ShardEdgeIndex, sources: Tensor) -> SourceEnds:
        """The sources of an edge_index."""
        out = sources.as_subclass(SourceEnds)
        out.edge_index = edge_index.flip(0) if edge_index.is_flipped else edge_index  # type: ignore[assignment]
        out.ends = self
        return out

    def forms(self) -> dict[AnyFn, AnyFn]:
        """PyG's functions over groups, and what they are over the edges out of a node."""
        return {scatter: self.scatter, softmax: self.softmax, degree: self.degree}

    def with_sources(self, values: Tensor, sources: SourceEnds, dim: int) -> Tensor:
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
    ) -> Tensor:
        """``torch_geometric.utils.scatter``."""
        if not isinstance(index, SourceEnds):
            out: Tensor = scatter(src, index, dim, dim_size, reduce)
            return out
        rows, own, num_own, _ = self._at_sources(src.movedim(dim, 0), index, dim_size)
        out = scatter(rows, own, 0, num_own, reduce)
        return out.movedim(0, dim)

    def softmax(
        self,
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        """``torch_geometric.utils.softmax``."""
        if not isinstance(index, SourceEnds):
            out: Tensor = softmax(src, index, ptr, num_nodes, dim)
            return out
        rows, own, num_own, to_given = self._at_sources(src.movedim(dim, 0), index, num_nodes)
        return to_given(softmax(rows, own, None, num_own)).movedim(0, dim)

    def degree(
        self, index: Tensor, num_nodes: int | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """``torch_geometric.utils.degree``."""
        if not isinstance(index, SourceEnds):
            out: Tensor = degree(index, num_nodes, dtype)
            return out
        ones = torch.ones(index.numel(), dtype=dtype, device=index.device)
        return self.scatter(ones, index, 0, num_nodes)

    def _at_sources(
        self, values: Tensor, sources: SourceEnds, num_nodes: int | None
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
