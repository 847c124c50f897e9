"""Which part holds what: the index tensors of every part, from the part of every node.

Everything rests on one numbering, the *place* of a node: nodes by (part, sub-part, global id).
Places of one part are contiguous, so "ascending place" means "grouped by owner, ascending at the
owner", and that is how halos, boundaries and blocks are all ordered. In a heterogeneous graph every
type of nodes has places of its own, and every relation has its own halos and blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NodeGroups:
    """The nodes of one type grouped by the part that holds them.

    Shapes:
        - **assignment** int64 [N]: part of every node
        - **node_perm** int64 [N]: global node ids, by place
        - **partptr** int64 [P + 1]: part p is ``node_perm[partptr[p]:partptr[p + 1]]``
        - **place** int64 [N]: position of every node in `node_perm`
    """

    assignment: Tensor
    node_perm: Tensor
    partptr: Tensor
    place: Tensor

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
        return _slice(self.node_perm, self.partptr, part).clone()


def group_nodes(assignment: Tensor, num_parts: int, sub_parts: Tensor) -> NodeGroups:
    """Groups nodes by part, and within a part by sub-part."""
    node_perm = _lexsort(sub_parts, assignment)
    partptr = _ptr(torch.bincount(assignment, minlength=num_parts))
    place = torch.empty_like(node_perm)
    place[node_perm] = torch.arange(node_perm.numel())
    return NodeGroups(assignment, node_perm, partptr, place)


@dataclass(frozen=True)
class EdgeGroups:
    """The edges of one relation, each with its destination.

    Attributes:
        src: The nodes that edges start from.
        dst: The nodes that edges end in.

    Shapes:
        - **edge_index** int64 [2, E]: global ids of source and destination
        - **edge_part** int64 [E]: part of every edge, that of its destination
        - **edge_perm** int64 [E]: global edge ids, by part, ascending within a part
        - **edgeptr** int64 [P + 1]: the same for `edge_perm`
    """

    src: NodeGroups
    dst: NodeGroups
    edge_index: Tensor
    edge_part: Tensor
    edge_perm: Tensor
    edgeptr: Tensor


def group_edges(edge_index: Tensor, src: NodeGroups, dst: NodeGroups) -> EdgeGroups:
    """Groups every edge with its destination."""
    edge_part = dst.assignment[edge_index[1]]
    edge_perm, edgeptr = _sort_by_part(edge_part, dst.num_parts)
    return EdgeGroups(src, dst, edge_index, edge_part, edge_perm, edgeptr)


@dataclass(frozen=True)
class Halos:
    """Which rows every part reads from every other one.

    Shapes:
        - **halo** int64 [H]: places read, by (reader, place)
        - **halo_rows** int64 [P, P]: ``[p, q]`` rows that part p reads from part q
        - **boundary** int64 [H]: the same places, by (owner, reader, place)
    """

    halo: Tensor
    halo_rows: Tensor
    boundary: Tensor


def find_halos(edges: EdgeGroups) -> Halos:
    """Finds the halo of every part, and the same rows as seen by their owners."""
    src_nodes, num_parts = edges.src, edges.src.num_parts
    halos = []
    for part in range(num_parts):
        e_id = _slice(edges.edge_perm, edges.edgeptr, part)
        src = edges.edge_index[0].index_select(0, e_id)
        remote = src[src_nodes.assignment.index_select(0, src) != part]
        halos.append(torch.unique(src_nodes.place.index_select(0, remote)))
    halo = torch.cat(halos)
    reader = torch.arange(num_parts).repeat_interleave(torch.tensor([h.numel() for h in halos]))
    owner = torch.bucketize(halo, src_nodes.partptr[1:], right=True)
    halo_rows = torch.bincount(reader * num_parts + owner, minlength=num_parts**2)
    boundary = halo[torch.argsort(owner, stable=True)]
    return Halos(halo, halo_rows.view(num_parts, num_parts), boundary)


@dataclass(frozen=True)
class PartLayout:
    """The index tensors of one relation in one part.

    Attributes:
        sar: What ``sar.pt`` holds of it: local ids, halo, boundary and blocks.
        graph: What PyG's ``graph.pt`` holds of it: the same edges by global id, sorted by
            (destination, source).
    """

    sar: dict[str, Tensor]
    graph: dict[str, Tensor | tuple[int, int]]


def part_layout(edges: EdgeGroups, exchange: Halos, part: int) -> PartLayout:
    """The layout of one part; made one at a time to hold only one in memory."""
    halo_counts, boundary_counts = exchange.halo_rows[part], exchange.halo_rows[:, part]
    halo = _slice(exchange.halo, _ptr(exchange.halo_rows.sum(dim=1)), part)
    boundary = _slice(exchange.boundary, _ptr(exchange.halo_rows.sum(dim=0)), part)
    src_nodes, dst_nodes, num_parts = edges.src, edges.dst, edges.src.num_parts
    src_start, src_end = src_nodes.partptr[part : part + 2].tolist()
    dst_start, dst_end = dst_nodes.partptr[part : part + 2].tolist()

    e_id = _slice(edges.edge_perm, edges.edgeptr, part)
    row, col = (ids.index_select(0, e_id) for ids in edges.edge_index)
    src_place = src_nodes.place.index_select(0, row)
    src_part = src_nodes.assignment.index_select(0, row)
    dst = dst_nodes.place.index_select(0, col) - dst_start

    # Edge ids ascend already, so two stable sorts leave (block, dst, id of the source, e_id); one
    # sort of a combined key could overflow 64 bits.
    perm = _lexsort(row, src_part * (dst_end - dst_start) + dst)
    halo_src = src_end - src_start + torch.searchsorted(halo, src_place)
    src = torch.where(src_part == part, src_place - src_start, halo_src)
    by_col = _lexsort(row, col)
    return PartLayout(
        sar={
            'halo_ptr': _ptr(halo_counts),
            'halo_pos': _position_at_owner(halo, src_nodes.partptr).to(torch.int32),
            'boundary_ptr': _ptr(boundary_counts),
            'boundary_pos': (boundary - src_start).to(torch.int32),
            'block_ptr': _ptr(torch.bincount(src_part, minlength=num_parts)),
            'src': src[perm].to(torch.int32),
            'dst': dst[perm].to(torch.int32),
            'e_id': e_id[perm],
        },
        graph={
            'edge_id': e_id[by_col],
            'row': row[by_col],
            'col': col[by_col],
            'size': (src_nodes.num_nodes, dst_nodes.num_nodes),
        },
    )


def _position_at_owner(place: Tensor, partptr: Tensor) -> Tensor:
    owner = torch.bucketize(place, partptr[1:], right=True)
    return place - partptr[owner]


def _sort_by_part(part: Tensor, num_parts: int) -> tuple[Tensor, Tensor]:
    return torch.argsort(part, stable=True), _ptr(torch.bincount(part, minlength=num_parts))


def _lexsort(minor: Tensor, major: Tensor) -> Tensor:
    """The stable order by (`major`, `minor`)."""
    perm = torch.argsort(minor, stable=True)
    return perm[torch.argsort(major[perm], stable=True)]


def _ptr(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _slice(values: Tensor, ptr: Tensor, part: int) -> Tensor:
    return values[int(ptr[part]) : int(ptr[part + 1])]
