"""Negative edges of a cut graph: pairs of nodes of the whole graph that no edge joins.

Every rank draws pairs of any node of the graph as source and an own node as destination. It has all
edges into its own nodes, so it knows which pairs are edges. Where the opposite direction counts
too, it gets the edges out of its own nodes by reversing them. The pairs become the edge_index of a
shard of their own, whose halo is their sources.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.utils import (
    batched_negative_sampling,
    is_undirected,
    negative_sampling,
    to_undirected,
)

from pyg_sar.comm import agree
from pyg_sar.comm.reshard.derive_shard import all_part_ptr, derive_shard, places
from pyg_sar.conv.around.patching import AnyFn, on_shards
from pyg_sar.conv.exchanges import Exchanges
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_MAX_TRIES = 3  # as PyG


class Negatives:
    """PyG's functions around negative sampling, on the shards of a forward."""

    def __init__(self, exchanges: Exchanges) -> None:
        self.exchanges = exchanges

    def forms(self) -> dict[AnyFn, AnyFn]:
        """The functions and their forms on a cut graph."""
        forms: dict[AnyFn, AnyFn] = {
            negative_sampling: self.negative_sampling,
            batched_negative_sampling: _refuse_batch,
            is_undirected: self.is_undirected,
            to_undirected: self.to_undirected,
        }
        return {function: on_shards(function, form) for function, form in forms.items()}

    def negative_sampling(
        self,
        edge_index: ShardEdgeIndex,
        num_nodes: Any = None,
        num_neg_samples: int | float | None = None,
        method: str = 'sparse',
        force_undirected: bool = False,
    ) -> Tensor:
        """``torch_geometric.utils.negative_sampling`` (collective).

        `num_neg_samples` is summed over the ranks, and each draws in proportion to its nodes, so
        that all pairs of the whole graph are equally likely.

        Returns int64 ``[2, num_samples]`` in local ids of a shard of its own.

        Raises:
            ValueError: For `force_undirected`, and on edges between two sets of nodes.
        """
        if force_undirected or edge_index.shard.is_bipartite:
            what = 'force_undirected=True' if force_undirected else 'edges between two sets'
            raise ValueError(f'expected directed pairs of nodes of one set to sample (got {what})')
        if num_neg_samples is None:
            num_neg_samples = edge_index.size(1)
        elif isinstance(num_neg_samples, float):
            num_neg_samples = int(num_neg_samples * edge_index.size(1))
        shard, part_ptr = edge_index.shard, all_part_ptr(edge_index.shard, edge_index.shard.own_ptr)
        known = self._pairs_into(edge_index, part_ptr, flip=False)
        first, end = part_ptr[shard.parts.start], part_ptr[shard.parts.stop]
        total = sum(agree(num_neg_samples)) if shard.world_size > 1 else num_neg_samples
        num_all = max(part_ptr[-1], 1)
        num = total * end // num_all - total * first // num_all
        src, dst = draw_negatives(known, part_ptr[-1], shard.num_own, num)
        pairs, _ = derive_shard(shard, part_ptr, src, dst, name='negatives')
        return pairs

    def is_undirected(self, edge_index: ShardEdgeIndex, *args: Any, **kwargs: Any) -> bool:
        """``torch_geometric.utils.is_undirected`` (collective)."""
        part_ptr = all_part_ptr(edge_index.shard, edge_index.shard.own_ptr)
        there, back = (self._pairs_into(edge_index, part_ptr, flip=flip) for flip in (False, True))
        is_symmetric = torch.equal(torch.unique(there), torch.unique(back))
        return all(agree(is_symmetric)) if edge_index.shard.world_size > 1 else is_symmetric

    def to_undirected(self, edge_index: ShardEdgeIndex, *args: Any, **kwargs: Any) -> Any:
        """``torch_geometric.utils.to_undirected`` (collective), as edges of a shard of their own.

        Raises:
            ValueError: With `edge_attr`, and on edges between two sets of nodes.
        """
        edge_attr = args[0] if args else kwargs.get('edge_attr', 'none given')
        if isinstance(edge_attr, (Tensor, list)) or edge_index.shard.is_bipartite:
            what = 'edges between two sets' if edge_index.shard.is_bipartite else "'edge_attr'"
            raise ValueError(
                f'expected edges without attributes, of one set of nodes, to undirect (got {what})'
            )
        shard, part_ptr = edge_index.shard, all_part_ptr(edge_index.shard, edge_index.shard.own_ptr)
        pairs = [self._pairs_into(edge_index, part_ptr, flip=flip) for flip in (False, True)]
        known = torch.unique(torch.cat(pairs))
        num_own = max(shard.num_own, 1)
        src, dst = known // num_own, known % num_own
        out = derive_shard(shard, part_ptr, src, dst, name='undirected')[0]
        return (out, None) if edge_attr is None else out

    def _pairs_into(self, edge_index: Tensor, part_ptr: list[int], *, flip: bool) -> Tensor:
        """The edges into own nodes (`flip`: out of them) as numbers, see :func:`draw_negatives`."""
        edges = self.exchanges.oriented(edge_index, flip=flip).edge_index
        shard: Shard = self.exchanges.of(edges).shard
        src, dst = edges.as_subclass(Tensor)
        return places(shard, part_ptr, src.device)[src] * shard.num_own + dst


def _refuse_batch(*args: Any, **kwargs: Any) -> NoReturn:
    raise ValueError("expected no 'batch' for negative samples of a cut graph (got one)")


def draw_negatives(known: Tensor, num_src: int, num_dst: int, num: int) -> tuple[Tensor, Tensor]:
    """Draws `num` different pairs (source, destination), all that are not known equally likely.

    Known ones are given as ``source * num_dst + destination``. Fewer come back where there are
    hardly any.
    """
    population = num_src * num_dst
    drawn = known[:0]
    known = torch.unique(known)
    free = population - known.numel()
    if free > 0 and num > 0:
        num_tries = int(1.1 * num * population / free) + 1
        for _ in range(_MAX_TRIES):
            tries = torch.unique(torch.randint(population, (num_tries,), device=known.device))
            tries = tries[~torch.isin(tries, known)]
            known = torch.cat([known, tries])
            drawn = torch.cat([drawn, tries[torch.randperm(tries.numel(), device=tries.device)]])
            if drawn.numel() >= num:
                break
        drawn = drawn[:num]
    return drawn // max(num_dst, 1), drawn % max(num_dst, 1)
