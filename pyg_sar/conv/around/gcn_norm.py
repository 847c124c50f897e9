"""Normalisations of the whole graph (gcn_norm, get_laplacian), computed on a cut graph.

All edges into a node are on its rank, so in-degrees are local. The degree of a halo source is
fetched from its owner. The edges out of a node lie on many ranks, so out-degrees are summed at the
owner, by the adjoint of that fetch. Arguments and results are those of PyG's functions, in local
ids, and gradients flow to edge weights. A result is kept if no weight takes a gradient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    remove_self_loops,
    scatter,
)

from pyg_sar.aggregate.halo import from_halo, with_halo
from pyg_sar.comm import all_ranks, raise_together
from pyg_sar.conv.exchanges import exchange_of, into_own
from pyg_sar.conv.reuse.checksum import checksum
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_MAX_RESULTS = 4


class Normalizer:
    """Computes normalisations for forwards of one kind; without a gradient only once (exact)."""

    def __init__(self) -> None:
        self._checked: set[str] = set()  # functions whose inputs all ranks have compared

    def gcn_norm(
        self,
        edge_index: ShardEdgeIndex,
        edge_weight: Tensor | None = None,
        num_nodes: int | None = None,
        improved: bool = False,
        add_self_loops: bool = True,
        flow: str = 'source_to_target',
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``torch_geometric.nn.conv.gcn_conv.gcn_norm`` on a cut graph."""
        key = ('gcn_norm', improved, add_self_loops, flow, dtype)
        flip = flow != 'source_to_target'
        edge_index, edge_weight = _oriented(edge_index, edge_weight, flip=flip)
        exchange = exchange_of(edge_index.shard)
        num_own = exchange.shard.num_own

        def compute() -> tuple[Tensor, Tensor]:
            index, weight = edge_index, edge_weight
            if add_self_loops:
                fill = 2.0 if improved else 1.0
                index, weight = add_remaining_self_loops(index, weight, fill, num_own)
            if weight is None:
                weight = torch.ones(index.size(1), dtype=dtype, device=index.device)
            src, dst = index.as_subclass(Tensor)
            degree = scatter(weight, dst, dim=0, dim_size=num_own, reduce='sum')
            scale = _inverse_power(degree, -0.5)
            return index, with_halo(scale, exchange)[src] * weight * scale[dst]

        index, weight = self._once(exchange.shard, key, edge_index, edge_weight, compute)
        return (index.flip(0) if flip else index), weight

    def get_laplacian(
        self,
        edge_index: ShardEdgeIndex,
        edge_weight: Tensor | None = None,
        normalization: str | None = None,
        dtype: torch.dtype | None = None,
        num_nodes: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``torch_geometric.utils.get_laplacian`` on a cut graph."""
        if normalization not in (None, 'sym', 'rw'):
            raise ValueError(f"'normalization' must be None, 'sym' or 'rw' (got {normalization!r})")
        key = ('get_laplacian', normalization, dtype)
        edge_index, edge_weight = _oriented(edge_index, edge_weight)
        exchange = exchange_of(edge_index.shard)
        num_own = exchange.shard.num_own

        def compute() -> tuple[Tensor, Tensor]:
            index, weight = remove_self_loops(edge_index, edge_weight)
            if weight is None:
                weight = torch.ones(index.size(1), dtype=dtype, device=index.device)
            src, dst = index.as_subclass(Tensor)
            # Out-degrees: the edges out of an own node lie with their destinations.
            num_local = num_own + exchange.shard.num_halo
            partial = scatter(weight, src, dim=0, dim_size=num_local, reduce='sum')
            degree = from_halo(partial, exchange)
            if normalization is None:
                index, _ = add_self_loops(index, num_nodes=num_own)
                return index, torch.cat([-weight, degree])
            if normalization == 'sym':
                scale = _inverse_power(degree, -0.5)
                weight = with_halo(scale, exchange)[src] * weight * scale[dst]
            else:
                weight = with_halo(_inverse_power(degree, -1.0), exchange)[src] * weight
            index, weight = add_self_loops(index, -weight, 1.0, num_own)
            return index, weight

        index, weight = self._once(exchange.shard, key, edge_index, edge_weight, compute)
        return index, weight

    def _once(
        self,
        shard: Shard,
        key: tuple[Any, ...],
        edge_index: ShardEdgeIndex,
        edge_weight: Tensor | None,
        compute: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """`compute()`, remembered while the very same tensors come in unchanged.

        Collective where weights come in: an all-reduce of one number. At the first call all ranks
        raise if the weights of one are wrong.
        """
        error, num_edges = None, edge_index.size(1)
        if edge_weight is not None and edge_weight.shape[:1] != (num_edges,):
            error = ValueError(
                f"expected one row per edge in 'edge_weight': {num_edges} rows "
                f'(got shape {tuple(edge_weight.shape)})'
            )
        if shard.world_size > 1 and key[0] not in self._checked:
            raise_together(error)
            self._checked.add(key[0])
        elif error is not None:
            raise error
        given = [edge_index] if edge_weight is None else [edge_index, edge_weight]
        if any(each.requires_grad or each.is_inference() for each in given):
            return compute()
        is_constant = edge_index.is_whole
        key = (*key, id(edge_index), edge_index._version)
        results = shard.cache.setdefault('normalize', OrderedDict())
        if edge_weight is None:
            is_known = key in results
        else:
            key = (*key, id(edge_weight), edge_weight._version, checksum(edge_weight))
            is_known = all_ranks(is_constant and key in results, shard.world_size)
        if not is_constant:
            return compute()
        if not is_known:
            # The inputs are kept too: an id is only good while its tensor lives.
            with torch.inference_mode(False), torch.no_grad():  # it outlives the caller's mode
                results[key] = given, compute()
            if len(results) > _MAX_RESULTS:
                results.popitem(last=False)
        results.move_to_end(key)
        return results[key][1]


def _oriented(
    edge_index: ShardEdgeIndex, edge_weight: Tensor | None, *, flip: bool = False
) -> tuple[ShardEdgeIndex, Tensor | None]:
    """Edges into own nodes, with their weights."""
    oriented, move = into_own(edge_index, flip=flip)
    if edge_weight is not None and move is not None:
        edge_weight = move.to_reversed(edge_weight)
    return oriented, edge_weight


def _inverse_power(degree: Tensor, exponent: float) -> Tensor:
    scale = degree.pow(exponent)
    return scale.masked_fill(scale == float('inf'), 0.0)
