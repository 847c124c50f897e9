"""The nodes of a graph by part and place, and the edges of a relation by their destinations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_sar.partition.buckets import Buckets, count_to_ptr, counts_to_ptr, stable_order
from pyg_sar.partition.mapped import Scratch, trim
from pyg_sar.partition.row_files import edge_chunks


@dataclass(frozen=True)
class NodeGroups:
    """The nodes of one type grouped by the part that holds them.

    Shapes:
        - **assignment** integer [N]: part of every node
        - **node_perm** [N]: global node ids, by place; int32 if it suffices
        - **partptr** int64 [P + 1]: part p is ``node_perm[partptr[p]:partptr[p + 1]]``
        - **place** [N]: position of every node in `node_perm`, of the same type
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
    node_perm = order.to(id_type)
    del order
    trim()
    return NodeGroups(assignment, node_perm, partptr, place)


@dataclass(frozen=True)
class EdgeGroups:
    """The edges of one relation, each with its destination.

    Attributes:
        src: The nodes that edges start from.
        dst: The nodes that edges end in.
        buckets: Records of global edge id, source and destination, by the destination's place;
            edge ids ascend within a bucket.

    Shapes:
        - **edge_index** integer [2, E]: global ids of source and destination
        - **partptr** int64 [P + 1]: part p has the buckets ``partptr[p]`` to ``partptr[p + 1]``
    """

    src: NodeGroups
    dst: NodeGroups
    edge_index: Tensor
    buckets: Buckets
    partptr: Tensor

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
    trim()
    partptr = torch.searchsorted(buckets.bounds, dst.partptr)
    return EdgeGroups(src, dst, edge_index, buckets, partptr)


def smallest_dtype(count: int) -> torch.dtype:
    """The type for ids below `count`."""
    return torch.int32 if count <= torch.iinfo(torch.int32).max else torch.int64
