"""Which part holds what: the index tensors of every part, from the part of every node.

Everything per node is in memory, everything per edge in scratch space. The passes:

1. :func:`group_nodes` numbers the nodes by part, :func:`group_edges` counts the in-edges of every
   node and cuts each part into buckets, ranges of destinations with at most a 128th of all edges.
2. A second pass over the edges deals each, with its id, into its bucket.
3. :func:`find_halos` reads the buckets of every part and marks which nodes they read: its halo.
4. :func:`part_layout` sorts the buckets of a part one after another. They are ranges of
   destinations, so what is sorted by block, then destination, grows in every block at once.

Everything rests on one numbering, the *place* of a node: nodes ordered by (part, sub-part, global
id), where sub-parts may be the parts themselves. Places of one part are contiguous, so "ascending
place" means "grouped by owner, ascending at the owner", and that is how halos, boundaries and
blocks are all ordered. In a heterogeneous graph every type of nodes has places of its own, and
every relation has its own halos and blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partition.external_sort import Buckets, count_to_ptr, counts_to_ptr, stable_order
from pyg_sar.partition.memmap import RowStream, Scratch, edge_chunks, ranges


@dataclass(frozen=True)
class NodeGroups:
    """The nodes of one type grouped by the part that holds them."""

    assignment: Tensor  # part of every node, integer [N]
    node_perm: Tensor  # global node ids by place, [N]; int32 if it suffices
    partptr: Tensor  # int64 [P + 1]: part p is ``node_perm[partptr[p]:partptr[p + 1]]``
    place: Tensor  # position of every node in `node_perm`, of the same type

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return self.assignment.numel()

    @property
    def num_parts(self) -> int:
        """Number of parts P."""
        return self.partptr.numel() - 1

    def n_id(self, part: int) -> Tensor:
        """The nodes of one part by place, int64."""
        own = self.node_perm[int(self.partptr[part]) : int(self.partptr[part + 1])]
        return own.to(torch.int64, copy=True)


def group_nodes(assignment: Tensor, num_parts: int, sub_parts: Tensor | None = None) -> NodeGroups:
    """Groups nodes by part, and within a part by sub-part, numbered part after part."""
    sub_parts = assignment if sub_parts is None else sub_parts
    id_type = smallest_dtype(assignment.numel())
    order = stable_order(sub_parts, int(sub_parts.max()) + 1 if sub_parts.numel() else 1)
    partptr = counts_to_ptr(torch.bincount(assignment, minlength=num_parts))
    place = torch.empty(order.shape, dtype=id_type)
    place[order] = torch.arange(order.numel(), dtype=id_type)
    return NodeGroups(assignment, order.to(id_type), partptr, place)


COUNTS = 'duplicates', 'self_loops'


@dataclass(frozen=True)
class EdgeGroups:
    """The edges of one relation, each with its destination."""

    src: NodeGroups
    dst: NodeGroups
    edge_index: Tensor  # global ids of source and destination, integer [2, E]
    # Records of global edge id, source and destination, by the destination's place; edge ids ascend
    # within a bucket.
    buckets: Buckets
    partptr: Tensor  # int64 [P + 1]: part p has the buckets ``partptr[p]`` to ``partptr[p + 1]``
    # How many edges are there more than once, and how many self loops; counted by part_layout.
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def of_part(self, part: int) -> range:
        """The buckets of one part."""
        return range(int(self.partptr[part]), int(self.partptr[part + 1]))


def group_edges(
    edge_index: Tensor, src: NodeGroups, dst: NodeGroups, scratch: Scratch
) -> EdgeGroups:
    """Groups every edge with its destination."""
    places = (dst.place.index_select(0, col) for _, _, col in edge_chunks(edge_index))
    ptr = count_to_ptr(places, dst.num_nodes)
    id_type = smallest_dtype(max(src.num_nodes, dst.num_nodes))
    buckets = Buckets(ptr, (torch.int64, id_type, id_type), scratch, cuts=dst.partptr)
    del ptr
    for start, row, col in edge_chunks(edge_index):
        e_id = torch.arange(start, start + row.numel())
        buckets.add(dst.place.index_select(0, col), e_id, row, col)
    partptr = torch.searchsorted(buckets.bounds, dst.partptr)
    return EdgeGroups(src, dst, edge_index, buckets, partptr)


def smallest_dtype(count: int) -> torch.dtype:
    """The type for ids below `count`."""
    return torch.int32 if count <= torch.iinfo(torch.int32).max else torch.int64


@dataclass(frozen=True)
class Halos:
    """Which rows every part reads from every other one."""

    halos: list[Tensor]  # places that each part reads, ascending and so by owner
    halo_rows: Tensor  # int64 [P, P]: ``[p, q]`` rows that part p reads from part q
    block_edges: Tensor  # int64 [P, P]: ``[p, q]`` edges from part q into part p

    def boundary(self, part: int) -> Tensor:
        """Places of a part that others read, by (reader, place); of the halos' type."""
        ends = self.halo_rows.cumsum(1)[:, part].tolist()
        counts = self.halo_rows[:, part].tolist()
        return torch.cat([h[e - n : e] for h, e, n in zip(self.halos, ends, counts, strict=True)])


def find_halos(edges: EdgeGroups) -> Halos:
    """Finds the halo of every part, and how many edges come from where."""
    nodes, num_parts = edges.src, edges.src.num_parts
    halos, block_edges = [], torch.zeros(num_parts, num_parts, dtype=torch.int64)
    for part in range(num_parts):
        is_read = torch.zeros(nodes.num_nodes, dtype=torch.bool)
        for bucket in edges.of_part(part):
            row = edges.buckets.read(bucket, 1)
            is_read[nodes.place.index_select(0, row).long()] = True
            of_src = nodes.assignment.index_select(0, row)
            block_edges[part] += torch.bincount(of_src, minlength=num_parts)
        is_read[nodes.partptr[part] : nodes.partptr[part + 1]] = False
        halos.append(is_read.nonzero().view(-1).to(smallest_dtype(nodes.num_nodes)))
        del is_read
    ends = [torch.searchsorted(halo, nodes.partptr.to(halo.dtype)) for halo in halos]
    return Halos(halos, torch.stack(ends).diff(dim=1), block_edges)


def part_layout(
    edges: EdgeGroups, exchange: Halos, part: int, scratch: Scratch
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``sar.pt`` holds of one relation in one part, and ``graph.pt``: the same edges by id."""
    nodes = edges.src
    src_start, src_end = nodes.partptr[part : part + 2].tolist()
    halo, num_own = exchange.halos[part], src_end - src_start
    local = torch.empty(nodes.num_nodes, dtype=torch.int32)  # by place
    local[src_start:src_end] = torch.arange(num_own, dtype=torch.int32)
    sources = torch.empty(num_own + halo.numel(), dtype=torch.int64)  # by local id
    sources[:num_own] = nodes.n_id(part)
    for start, stop in ranges(halo.numel()):
        places = halo[start:stop].long()
        local[places] = torch.arange(num_own + start, num_own + stop, dtype=torch.int32)
        sources[num_own + start : num_own + stop] = nodes.node_perm[places]

    block_ptr = counts_to_ptr(exchange.block_edges[part])
    dtypes = torch.int32, torch.int32, torch.int64
    blocks = Buckets(block_ptr, dtypes, scratch, cuts=torch.arange(block_ptr.numel()))
    for bucket in edges.of_part(part):
        _sort_bucket(edges, bucket, part, local, blocks)
    del local
    src, dst, e_id = blocks.columns
    return (
        {
            'halo_ptr': counts_to_ptr(exchange.halo_rows[part]),
            'halo_pos': _position_at_owner(halo, exchange.halo_rows[part], nodes.partptr),
            'boundary_ptr': counts_to_ptr(exchange.halo_rows[:, part]),
            'boundary_pos': exchange.boundary(part).sub_(src_start).to(torch.int32),
            'block_ptr': block_ptr,
            'src': src,
            'dst': dst,
        },
        {
            'edge_id': e_id,
            'row': RowStream(sources, src),
            'col': RowStream(edges.dst.n_id(part), dst),
            'size': (nodes.num_nodes, edges.dst.num_nodes),
        },
    )


def _sort_bucket(edges: EdgeGroups, bucket: int, part: int, local: Tensor, blocks: Buckets) -> None:
    """Appends the edges of a bucket by (destination, source, id) to their blocks.

    In every order of nodes sources are in that of their ids: sums over a block have the same bits.
    """
    row, col = (edges.buckets.read(bucket, number) for number in (1, 2))
    if edges.src is edges.dst:
        edges.counts['self_loops'] += int((row == col).sum())
    first, stop = edges.buckets.bounds[bucket : bucket + 2].tolist()
    dst = edges.dst.place.index_select(0, col).long()
    del col
    # One number per pair: below 2^63 for up to 3 * 10^9 nodes. Edge ids ascend already.
    num_src = edges.src.num_nodes
    pairs = dst.sub(first).mul_(num_src).add_(row)
    order = stable_order(pairs, (stop - first) * num_src)
    del pairs
    dst = dst.sub_(int(edges.dst.partptr[part])).index_select(0, order)
    row = row.index_select(0, order)
    is_again = (dst[1:] == dst[:-1]).logical_and_(row[1:] == row[:-1])
    edges.counts['duplicates'] += int(is_again.sum())
    e_id = edges.buckets.read(bucket, 0).index_select(0, order)
    del order
    owner = edges.src.assignment.index_select(0, row)
    blocks.add(owner, local.index_select(0, edges.src.place.index_select(0, row)), dst, e_id)


def _position_at_owner(halo: Tensor, counts: Tensor, partptr: Tensor) -> Tensor:
    """Rows of the halo at their owners, int32; `counts` tells how many each owner has."""
    owners = zip(torch.split(halo, counts.tolist()), partptr.tolist(), strict=False)
    return torch.cat([(places - start).to(torch.int32) for places, start in owners])
