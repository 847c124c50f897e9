"""The blocks of an edge_index: its edges grouped by the part that owns their source.

The edge_index of a conv is the shard's own, which lies in this order already, or one that the conv
made from it (self loops added or removed), which is sorted. So a shard remembers the plans of the
edge_indices it has seen, up to four times its own number of edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.shard.csr import MAX_EDGES, Segments, compacted, make_segments
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.index_rows import rows_at, write_rows_at
from pyg_sar.shard.shard import Cached, Shard
from pyg_sar.utils.offload import start_of

PLANS: Cached[list[Plan]] = Cached()
_EQUAL: Cached[tuple[ref[Tensor], int]] = Cached()


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one rank whose sources one part owns."""

    part: int  # which owns the sources
    num_rows: int  # source rows of the block: own rows, or rows received
    num_dst: int  # own destinations of the rank
    start: int  # local id of the first source row
    edges: slice | Tensor  # their indices in edge tensors, a range or int64 ``[num_edges]``
    all_edges: Tensor = field(repr=False)
    # Source rows, and destinations, in the order of the sums; None for ascending order.
    node_order: tuple[Tensor | None, ...] = field(repr=False)

    @property
    def edge_index(self) -> Tensor:
        """Source row of the block and own destination, int64 ``[2, num_edges]``, by destination."""
        # Not kept: 16 bytes an edge, and a subtraction is cheap.
        edge_index = self.take(self.all_edges, dim=1)
        return torch.stack([edge_index[0] - self.start, edge_index[1]])

    @cached_property
    def num_edges(self) -> int:
        """Number of edges of the block."""
        if isinstance(self.edges, slice):
            return int(self.edges.stop - self.edges.start)
        return self.edges.numel()

    def take(self, values: Tensor, dim: int = 0) -> Tensor:
        """The block's rows of an edge tensor ``[E, ...]``; a view where the edges are a range."""
        if isinstance(self.edges, slice):
            return values.narrow(dim, self.edges.start, self.num_edges)
        return rows_at(values, self.edges) if dim == 0 else values.index_select(dim, self.edges)

    def put(self, values: Tensor, rows: Tensor) -> None:
        """Writes the block's rows into an edge tensor ``[E, ...]``."""
        if isinstance(self.edges, slice):
            values[self.edges] = rows
        else:
            write_rows_at(values, self.edges, rows.to(values.dtype))

    def span(self, values: Tensor) -> Tensor:
        """The rows of an edge tensor to which :attr:`by_dst` and :attr:`by_src` refer, a view.

        These are the block's rows where its edges are a range, else all.
        """
        if isinstance(self.edges, slice):
            return values.narrow(0, self.edges.start, self.num_edges)
        return values

    @cached_property
    @torch.inference_mode(False)
    def by_dst(self) -> Segments:
        """Edges grouped by destination: the forward sum."""
        src, dst = self.edge_index
        node_order = self.node_order[1]
        return self._counted(
            make_segments(dst, src, self.num_dst, is_sorted=True, node_order=node_order)
        )

    @cached_property
    @torch.inference_mode(False)
    def by_src(self) -> Segments:
        """Edges grouped by source row: the transposed sum of backward."""
        src, dst = self.edge_index
        return self._counted(make_segments(src, dst, self.num_rows, node_order=self.node_order[0]))

    def _counted(self, segments: Segments) -> Segments:
        """Segments of the block with the edges counted as in :meth:`span`."""
        if isinstance(self.edges, slice):
            return segments
        edges = self.edges if segments.perm is None else self.edges[segments.perm]
        is_far = edges.numel() > 0 and int(edges.max()) > MAX_EDGES
        return segments._replace(perm=edges if is_far else edges.int())

    @cached_property
    @torch.inference_mode(False)
    def by_src_compacted(self) -> tuple[Tensor, Segments]:
        """Own destinations that have edges, int64, and :attr:`by_src` among them."""
        return compacted(self.by_src)


@dataclass(frozen=True, eq=False)
class Plan:
    """All blocks of one edge_index, in the order in which they are visited: own parts first."""

    shard: Shard  # whose local ids the edge_index uses
    blocks: tuple[Block, ...]  # own blocks, then one block for every step of the shard
    edge_index: Tensor  # plain int64 ``[2, num_edges]``
    version: int  # of `edge_index` when the blocks were made
    is_whole: bool = False  # whether these are all edges of the shard in their order
    kept: dict[Cached[Any], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def num_edges(self) -> int:
        """Number of edges of all blocks."""
        return self.edge_index.size(1)

    @cached_property
    def in_degree(self) -> Tensor:
        """Number of edges into every own node, int64 ``[num_dst]``."""
        with torch.inference_mode(False):
            return torch.bincount(self.edge_index[1], minlength=self.shard.num_dst)


@torch.inference_mode(False)  # a plan outlives the caller's mode
def _make_plan(handle: ShardEdges) -> Plan:
    plain, shard = handle.ids, handle.shard
    ptr: Sequence[int] = shard.block_ptr
    perm = None
    if not handle.is_whole or shard.is_whole_graph:
        plain = plain.detach()
        plain = plain.clone() if plain.is_inference() else plain
        check_ids(plain, shard)
        part = _source_part(plain[0], shard)
        perm = torch.argsort(part * max(shard.num_dst, 1) + plain[1], stable=True)
        ptr = [0, *torch.bincount(part, minlength=shard.num_parts).cumsum(0).tolist()]
    node_order = tuple(end.nodes.to(plain.device) for end in shard.cut or ()) or (None, None)
    blocks = []
    for part_id in (*shard.parts, *(step.part for step in shard.steps)):
        start, end = shard.source_range(part_id)
        edges = slice(ptr[part_id], ptr[part_id + 1])
        blocks.append(
            Block(
                part=part_id,
                num_rows=end - start,
                num_dst=shard.num_dst,
                start=start,
                edges=edges if perm is None else perm[edges],
                all_edges=plain,
                node_order=node_order,
            )
        )
    return Plan(shard, tuple(blocks), plain, plain._version, is_whole=handle.is_whole)


def check_ids(edge_index: Tensor, shard: Shard) -> None:
    """Raises ValueError if edges are not int64 ``[2, E]`` of local ids into own nodes."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype != torch.int64:
        raise ValueError(
            f"expected an int64 'edge_index' of shape [2, E] (got {edge_index.dtype} of shape "
            f'{tuple(edge_index.shape)})'
        )
    if edge_index.numel() == 0:
        return
    num_local = shard.num_own + shard.num_halo
    low, high = (int(v) for v in torch.aminmax(edge_index))
    last = int(edge_index[1].max())
    if low < 0 or int(edge_index[0].max()) >= num_local or last >= max(num_local, shard.num_dst):
        raise ValueError(
            f"expected local ids in [0, {num_local}) in an 'edge_index' derived from a shard (got "
            f'{low} to {high})'
        )
    if last >= shard.num_dst:
        raise ValueError(
            "expected own nodes as destinations of an 'edge_index' derived from a shard, with "
            f'local ids in [0, {shard.num_dst}) (got destination {last} on a rank with '
            f'{shard.num_dst} of them)'
        )


def _source_part(src: Tensor, shard: Shard) -> Tensor:
    """The part that owns each source, int64 ``[E]``."""
    remote = (q for q in range(shard.num_parts) if q not in shard.parts)
    parts = [*shard.parts, *remote]  # ascending in local ids
    ends = torch.tensor([shard.source_range(part)[1] for part in parts], device=src.device)
    index = torch.bucketize(src.contiguous(), ends, right=True)
    return torch.tensor(parts, device=src.device)[index]


def plan_of(handle: ShardEdges) -> Plan:
    """The blocks of edges with their sources in row 0, remembered by their content."""
    shard = handle.shard
    plans = PLANS.of(shard, list)
    plan = next((p for p in reversed(plans) if _is_of(p, handle.ids)), None) or _make_plan(handle)
    if plans and plan is plans[-1]:
        return plan
    plans[:] = [*(p for p in plans if p is not plan), plan]  # most recently used last
    limit = 4 * max(shard.num_edges, shard.num_own, shard.num_dst)
    while len(plans) > 1 and sum(p.num_edges for p in plans) > limit:
        plans.pop(0)
    return plan


def _is_of(plan: Plan, ids: Tensor) -> bool:
    own = plan.edge_index
    is_changed = plan.version != own._version  # in place
    if is_changed or own.shape != ids.shape or own.device != ids.device:
        return False
    if own is ids or (start_of(own) == start_of(ids) and own.stride() == ids.stride()):
        return True
    if ids.device.type == 'cpu' or ids.is_inference():
        return torch.equal(own, ids)
    # Comparing contents waits for a device, and a conv asks for the same edges twice.
    equal, version = _EQUAL.get(plan) or (None, None)
    if equal is not None and equal() is ids and version == ids._version:
        return True
    if not torch.equal(own, ids):
        return False
    _EQUAL.put(plan, (ref(ids), ids._version))
    return True


@dataclass(frozen=True, eq=False)
class DestinationChunk:
    """A range of own destinations with all their in-edges, which median or LSTM need at once.

    Its edges keep the order of the original graph, in which LSTM and GRU read them.
    """

    dst: slice
    # Indices of the edges in edge tensors, int64 ``[num_edges]``: by destination, and
    # within a destination in the order of the whole graph.
    edges: Tensor
    # int64 ``[2, num_edges]``: rows of the chunk's sources, destinations from zero.
    edge_index: Tensor
    own: Tensor  # own rows among the sources, int64
    halo: Tensor  # halo rows among them, int64, from zero; they follow the own rows

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return int(self.dst.stop - self.dst.start)


@torch.inference_mode(False)
def make_chunks(plan: Plan, max_rows: int, max_dst: int | None = None) -> list[DestinationChunk]:
    """Cuts the own destinations into runs of at most `max_rows` in-edges, one destination at least.

    A chunk has `max_dst` destinations at most.
    """
    shard, edge_index = plan.shard, plan.edge_index
    dst = edge_index[1]
    if plan.is_whole and shard.e_id is not None:  # within a destination as in the whole graph
        by_id = torch.argsort(shard.e_id)
        order = by_id[torch.argsort(dst[by_id], stable=True)]
    else:
        order = torch.argsort(dst, stable=True)
    ends = plan.in_degree.cumsum(0)
    chunks: list[DestinationChunk] = []
    start, first = 0, 0
    while start < shard.num_dst or not chunks:
        # The last destination that still fits, or the first one.
        limit = torch.tensor(first + max_rows, device=ends.device)
        end = max(int(torch.searchsorted(ends, limit, right=True)), start + 1)
        end = min(end, shard.num_dst, start + (max_dst or shard.num_dst))
        last = int(ends[end - 1]) if end else 0
        edges = order[first:last]
        src, dst = edge_index[:, edges]
        rows, src = torch.unique(src, return_inverse=True)
        is_own = rows < shard.num_own
        chunks.append(
            DestinationChunk(
                dst=slice(start, end),
                edges=edges,
                edge_index=torch.stack([src, dst - start]),
                own=rows[is_own],
                halo=rows[~is_own] - shard.num_own,
            )
        )
        start, first = end, last
    return chunks


def no_chunk(plan: Plan) -> DestinationChunk:
    """A chunk of nothing, for a rank that has none left."""
    empty = plan.edge_index[1][:0]
    num_dst = plan.shard.num_dst
    return DestinationChunk(slice(num_dst, num_dst), empty, plan.edge_index[:, :0], empty, empty)
