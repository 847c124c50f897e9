"""The blocks of an edge_index: its edges grouped by the part that owns their source.

The edge_index that reaches a conv's ``propagate`` is the shard's own, or one that the conv made
from it (self loops added or removed, one relation selected). Either way its blocks follow from the
source ids alone. Building a plan sorts all edges; so a shard remembers the plans of the
edge_indices it has seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from pyg_sar.shard.bags import Bags, make_bags
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard

_MAX_PLANS = 64


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one rank whose sources one part owns.

    Attributes:
        part: The part that owns the sources.
        num_rows: Number of source rows of the block (own rows, or rows received).
        num_own: Number of destinations, i.e. own nodes of the rank.
        edge_index: Its edges, int64 ``[2, num_edges]``: source row of the block, own destination;
            sorted by destination.
        edges: Their places in the order of edge tensors: a slice, or int64 ``[num_edges]``.
    """

    part: int
    num_rows: int
    num_own: int
    start: int
    edges: slice | Tensor
    _all_edges: Tensor = field(repr=False)

    @property
    def edge_index(self) -> Tensor:
        # Not kept: 16 bytes an edge, and a subtraction is cheap.
        edge_index = self.take(self._all_edges, dim=1)
        return torch.stack([edge_index[0] - self.start, edge_index[1]])

    @property
    def num_edges(self) -> int:
        if isinstance(self.edges, slice):
            return int(self.edges.stop - self.edges.start)
        return self.edges.numel()

    def take(self, values: Tensor, dim: int = 0) -> Tensor:
        """The block's rows of an edge tensor ``[E, ...]``; a view where the edges are a range."""
        if isinstance(self.edges, slice):
            return values.narrow(dim, self.edges.start, self.num_edges)
        return values.index_select(dim, self.edges)

    def put(self, values: Tensor, rows: Tensor) -> None:
        """Writes the block's rows into an edge tensor ``[E, ...]``."""
        values[self.edges] = rows

    @cached_property
    def by_dst(self) -> Bags:
        """Edges grouped by destination: the forward sum."""
        src, dst = self.edge_index
        return make_bags(dst, src, self.num_own, is_sorted=True)

    @cached_property
    def by_src(self) -> Bags:
        """Edges grouped by source row: the transposed sum of backward."""
        src, dst = self.edge_index
        return make_bags(src, dst, self.num_rows)


@dataclass(frozen=True, eq=False)
class Plan:
    """All blocks of one edge_index, in the order in which they are visited: own parts first.

    Attributes:
        shard: The shard whose local ids the edge_index uses.
        blocks: Own blocks, then one block for every step of the shard.
        num_edges: Number of edges, i.e. the rows of every edge tensor.
        edge_index: The edge_index, plain int64 ``[2, num_edges]``.
    """

    shard: Shard
    blocks: tuple[Block, ...]
    edge_index: Tensor

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    @cached_property
    def in_degree(self) -> Tensor:
        """Number of edges into every own node, int64 ``[num_own]``."""
        return torch.bincount(self.edge_index[1], minlength=self.shard.num_own)


def _make_plan(edge_index: Tensor, shard: Shard) -> Plan:
    if isinstance(edge_index, ShardEdgeIndex) and edge_index.is_whole:
        plain = edge_index.as_subclass(Tensor)
        ptr: tuple[int, ...] | list[int] = shard.block_ptr
        perm = None
    else:
        plain = edge_index.as_subclass(Tensor).detach().clone()
        _check_ids(plain, shard)
        part = _source_part(plain[0], shard)
        perm = torch.argsort(part * max(shard.num_own, 1) + plain[1], stable=True)
        counts = torch.bincount(part, minlength=shard.num_parts)
        ptr = [0, *counts.cumsum(0).tolist()]
    order = [*shard.parts, *(step.part for step in shard.steps)]
    blocks = []
    for part_id in order:
        start, end = shard.source_range(part_id)
        edges = slice(ptr[part_id], ptr[part_id + 1])
        blocks.append(
            Block(
                part=part_id,
                num_rows=end - start,
                num_own=shard.num_own,
                start=start,
                edges=edges if perm is None else perm[edges],
                _all_edges=plain,
            )
        )
    return Plan(shard, tuple(blocks), plain)


def _check_ids(edge_index: Tensor, shard: Shard) -> None:
    if edge_index.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(edge_index))
    if low < 0 or high >= shard.num_own + shard.num_halo:
        raise ValueError(
            f"expected local ids in [0, {shard.num_own + shard.num_halo}) in an 'edge_index' "
            f'derived from a shard (got {low} to {high})'
        )
    last = int(edge_index[1].max())
    if last >= shard.num_own:
        raise ValueError(
            "expected own nodes as destinations of an 'edge_index' derived from a shard (got "
            f'destination {last} on a rank with {shard.num_own} own nodes); '
            'a reversed or bipartite edge_index is not supported'
        )


def _source_part(src: Tensor, shard: Shard) -> Tensor:
    """The part that owns each source, int64 ``[E]``."""
    ends, parts = [], []
    remote = (q for q in range(shard.num_parts) if q not in shard.parts)
    for part in [*shard.parts, *remote]:  # ascending in local ids
        ends.append(shard.source_range(part)[1])
        parts.append(part)
    boundaries = torch.tensor(ends, device=src.device)
    place = torch.bucketize(src, boundaries, right=True)
    return torch.tensor(parts, device=src.device)[place]


def plan_of(edge_index: Tensor, shard: Shard) -> Plan:
    """The blocks of `edge_index`, remembered by its content.

    Args:
        edge_index: int64 ``[2, E]`` in local ids of `shard`: the shard's own, or derived from it.
        shard: The shard.

    Raises:
        ValueError: If an id is out of range, or a destination is not an own node.
    """
    plans: list[Plan] = shard.cache.setdefault('plans', [])
    plain = edge_index.as_subclass(Tensor)
    for i in reversed(range(len(plans))):
        if _same(plans[i].edge_index, plain):
            plans.append(plans.pop(i))  # most recently used last
            return plans[-1]
    plans.append(_make_plan(edge_index, shard))
    if len(plans) > _MAX_PLANS:
        plans.pop(0)
    return plans[-1]


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.device != b.device:
        return False
    # Comparing contents costs a few percent of a layer; building a plan far more.
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)
