"""Which part holds what: the index tensors of every part, from the part of every node.

Everything rests on one numbering, the *place* of a node: nodes ordered by (part, global id).
Places of one part are contiguous, so "ascending place" means "grouped by owner, ascending at the
owner", and that is how halos, boundaries and blocks are all ordered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grouping:
    """Nodes and edges grouped by the part that holds them.

    Shapes:
        - **assignment** int64 [N]: part of every node
        - **node_perm** int64 [N]: global node ids, by part, ascending within a part
        - **partptr** int64 [P + 1]: part p is ``node_perm[partptr[p]:partptr[p + 1]]``
        - **place** int64 [N]: position of every node in `node_perm`
        - **edge_part** int64 [E]: part of every edge, that of its destination
        - **edge_perm** int64 [E]: global edge ids, by part, ascending within a part
        - **edgeptr** int64 [P + 1]: the same for `edge_perm`
    """

    assignment: Tensor
    node_perm: Tensor
    partptr: Tensor
    place: Tensor
    edge_part: Tensor
    edge_perm: Tensor
    edgeptr: Tensor

    @property
    def num_parts(self) -> int:
        """Number of parts P."""
        return self.partptr.numel() - 1


def group(assignment: Tensor, edge_index: Tensor, num_parts: int) -> Grouping:
    """Groups nodes by part, and every edge with its destination."""
    node_perm, partptr = _sort_by_part(assignment, num_parts)
    place = torch.empty_like(node_perm)
    place[node_perm] = torch.arange(node_perm.numel())
    edge_part = assignment[edge_index[1]]
    edge_perm, edgeptr = _sort_by_part(edge_part, num_parts)
    return Grouping(assignment, node_perm, partptr, place, edge_part, edge_perm, edgeptr)


@dataclass(frozen=True)
class Exchange:
    """Which rows every part reads from every other one.

    Shapes:
        - **halo** int64 [H]: places read, by (reader, place)
        - **halo_rows** int64 [P, P]: ``[p, q]`` rows that part p reads from part q
        - **boundary** int64 [H]: the same places, by (owner, reader, place)
    """

    halo: Tensor
    halo_rows: Tensor
    boundary: Tensor


def find_exchange(grouping: Grouping, edge_index: Tensor) -> Exchange:
    """Finds the halo of every part, and the same rows as seen by their owners."""
    num_parts = grouping.num_parts
    halos = []
    for part in range(num_parts):
        edges = _slice(grouping.edge_perm, grouping.edgeptr, part)
        src = edge_index[0].index_select(0, edges)
        remote = src[grouping.assignment.index_select(0, src) != part]
        halos.append(torch.unique(grouping.place.index_select(0, remote)))
    halo = torch.cat(halos)
    reader = torch.arange(num_parts).repeat_interleave(torch.tensor([h.numel() for h in halos]))
    owner = torch.bucketize(halo, grouping.partptr[1:], right=True)
    halo_rows = torch.bincount(reader * num_parts + owner, minlength=num_parts**2)
    boundary = halo[torch.argsort(owner, stable=True)]
    return Exchange(halo, halo_rows.view(num_parts, num_parts), boundary)


@dataclass(frozen=True)
class PartLayout:
    """The index tensors of one part.

    Attributes:
        sar: The content of ``sar.pt``: local ids, halo, boundary and blocks.
        graph: The content of PyG's ``graph.pt``: the same edges by global id, sorted by
            (destination, source).
    """

    sar: dict[str, Tensor]
    graph: dict[str, Tensor | tuple[int, int]]


def part_layouts(
    grouping: Grouping, exchange: Exchange, edge_index: Tensor
) -> Iterator[PartLayout]:
    """Yields the layout of part 0, 1, ..., one at a time to hold only one in memory."""
    halo_ptr = _ptr(exchange.halo_rows.sum(dim=1))
    boundary_ptr = _ptr(exchange.halo_rows.sum(dim=0))
    for part in range(grouping.num_parts):
        yield _part_layout(
            grouping,
            edge_index,
            part,
            halo=_slice(exchange.halo, halo_ptr, part),
            boundary=_slice(exchange.boundary, boundary_ptr, part),
            halo_counts=exchange.halo_rows[part],
            boundary_counts=exchange.halo_rows[:, part],
        )


def _part_layout(
    grouping: Grouping,
    edge_index: Tensor,
    part: int,
    *,
    halo: Tensor,
    boundary: Tensor,
    halo_counts: Tensor,
    boundary_counts: Tensor,
) -> PartLayout:
    num_parts, num_nodes = grouping.num_parts, grouping.assignment.numel()
    n_id = _slice(grouping.node_perm, grouping.partptr, part).clone()
    start = int(grouping.partptr[part])

    e_id = _slice(grouping.edge_perm, grouping.edgeptr, part)
    row, col = edge_index[0].index_select(0, e_id), edge_index[1].index_select(0, e_id)
    src_place = grouping.place.index_select(0, row)
    src_part = grouping.assignment.index_select(0, row)
    dst = grouping.place.index_select(0, col) - start

    # Edge ids ascend already, so two stable sorts leave (block, dst, src, e_id); one sort of a
    # combined key could overflow 64 bits.
    perm = _lexsort(src_place, src_part * n_id.numel() + dst)
    own = src_part == part
    src = torch.where(own, src_place - start, n_id.numel() + torch.searchsorted(halo, src_place))
    by_col = _lexsort(row, col)
    return PartLayout(
        sar={
            'n_id': n_id,
            'halo_ptr': _ptr(halo_counts),
            'halo_pos': _position_at_owner(halo, grouping.partptr).to(torch.int32),
            'boundary_ptr': _ptr(boundary_counts),
            'boundary_pos': (boundary - start).to(torch.int32),
            'block_ptr': _ptr(torch.bincount(src_part, minlength=num_parts)),
            'src': src[perm].to(torch.int32),
            'dst': dst[perm].to(torch.int32),
            'e_id': e_id[perm],
        },
        graph={
            'edge_id': e_id[by_col],
            'row': row[by_col],
            'col': col[by_col],
            'size': (num_nodes, num_nodes),
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
