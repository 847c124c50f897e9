"""The graph as partitioners read it: the neighbours of every node, in both directions.

Every edge is dealt, both ways, into buckets of consecutive rows in scratch space, in passes that
hold a 128th of the edges in memory. Then one bucket at a time is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.buckets import Buckets, count_to_ptr
from pyg_sar.partition.mapped import (
    MEMORY,
    FloatArray,
    IndexArray,
    Int64Array,
    Scratch,
    release,
    trim,
)
from pyg_sar.partition.row_files import edge_chunks, ranges


def both_ways(
    edge_index: Tensor,
    num_nodes: int,
    scratch: Scratch,
    *,
    has_loops: bool = False,
) -> Buckets:
    """Records ``row * N + column`` of every edge [2, E] and its reverse, by row.

    One number is below 2^63 for up to 3 * 10^9 nodes. In scratch space an edge has 16 bytes.
    With `has_loops` self loops are among them, twice as well.
    """

    def edges() -> Iterator[tuple[Tensor, Tensor]]:
        for _, src, dst in edge_chunks(edge_index):
            if not has_loops:
                kept = src != dst
                src, dst = src[kept], dst[kept]
            yield src, dst

    ptr = count_to_ptr((ids for ends in edges() for ids in ends), num_nodes)
    records = Buckets(ptr, [torch.int64], scratch)
    del ptr
    for src, dst in edges():
        for row, column in ((src, dst), (dst, src)):
            records.add(row, row * num_nodes + column)
    return records


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of every node, in ascending order.

    Shapes:
        - **indptr** int64 [N + 1]: node v has ``columns[indptr[v]:indptr[v + 1]]``
        - **columns** int64, in scratch space
    """

    indptr: Tensor
    columns: Tensor

    def csr(
        self, start: int = 0, stop: int | None = None, dtype: type = np.int64
    ) -> tuple[Int64Array, IndexArray]:
        """The neighbours of a run of nodes that no edge leaves, in memory and numbered from 0."""
        ptr = self.indptr[start:] if stop is None else self.indptr[start : stop + 1]
        columns = self.columns[ptr[0] : ptr[-1]]
        index: IndexArray = np.empty(columns.numel(), dtype=dtype)
        for first, last in ranges(index.size):
            part = columns[first:last]
            np.subtract(part.numpy(), start, out=index[first:last], casting='same_kind')
            release(part)
        return (ptr - ptr[0] if start else ptr).numpy(), index


def neighbours(
    edge_index: Tensor, num_nodes: int, scratch: Scratch = MEMORY, *, keep_duplicates: bool = False
) -> Neighbours:
    """The graph symmetric; with its duplicate edges, and self loops twice, or without both."""
    edges = both_ways(edge_index, num_nodes, scratch, has_loops=keep_duplicates)
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    columns, end = edges.columns[0], 0
    for bucket, start, stop in edges:
        keys: Int64Array = edges.read(bucket).numpy()
        keys.sort()
        if not keep_duplicates:
            is_first = np.ones(keys.shape, dtype=bool)
            np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
            keys = keys[is_first]
        column = torch.from_numpy(keys)
        row = column // num_nodes
        column.sub_(row, alpha=num_nodes)
        indptr[start + 1 : stop + 1] = row.sub_(start).bincount(minlength=stop - start)
        target = columns[end : end + column.numel()]
        target[:] = column
        release(target)
        end += column.numel()
        del keys, row, column
    indptr.cumsum_(0)
    trim()
    return Neighbours(indptr, columns[:end])


def neighbours_by_part(
    indptr: IndexArray,
    index: IndexArray,
    parts: Int64Array,
    nodes: slice,
    num_parts: int,
) -> FloatArray:
    """How many neighbours each of some nodes has in every part, [B, P].

    `parts` is int64 [N], the part of every node or -1; `nodes` a run of nodes.
    """
    ptr = indptr[nodes.start : nodes.stop + 1]
    degree, neighbours = np.diff(ptr), index[ptr[0] : ptr[-1]]
    row = np.repeat(np.arange(len(degree)), degree)
    # Column 0 collects neighbours without a part.
    cell = row * (num_parts + 1) + parts[neighbours] + 1
    count = np.bincount(cell, minlength=len(degree) * (num_parts + 1))
    return count.reshape(-1, num_parts + 1)[:, 1:].astype(np.float64)
