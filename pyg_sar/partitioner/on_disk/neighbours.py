"""The graph as partitioners read it: the neighbours of every node, in both directions.

Every edge is dealt, both ways, into buckets of consecutive rows in scratch space, in passes that
hold a 128th of the edges in memory. Then one bucket at a time is sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.buckets import Buckets, count_to_ptr
from pyg_sar.partitioner.on_disk.mapped import (
    FloatArray,
    IndexArray,
    Int64Array,
    Scratch,
    release,
    trim,
)
from pyg_sar.partitioner.on_disk.rows import edge_chunks, ranges


def both_ways(
    edge_index: Tensor,
    num_nodes: int,
    scratch: Scratch,
    *,
    has_loops: bool = False,
    has_numbers: bool = False,
) -> Buckets:
    """Records ``row * N + column`` of every edge and its reverse, by row.

    One number is below 2^63 for up to 3 * 10^9 nodes. In scratch space an edge has 16 bytes, 32
    with numbers.

    Args:
        edge_index: [2, E], any directed graph; in memory or mapped.
        num_nodes: Number of nodes N.
        scratch: Where the records lie.
        has_loops: Whether self loops are among them, then twice as well.
        has_numbers: Whether the number of the edge, a second field, comes with each; that of its
            reverse is greater by E.
    """

    def edges() -> Iterator[tuple[int, Tensor, Tensor]]:
        for start, src, dst in edge_chunks(edge_index):
            if not has_loops:
                kept = src != dst
                src, dst = src[kept], dst[kept]
            yield start, src, dst

    ptr = count_to_ptr((ids for _, *ends in edges() for ids in ends), num_nodes)
    found = Buckets(ptr, [torch.int64] * (1 + has_numbers), scratch)
    del ptr
    for start, src, dst in edges():
        for number, row, column in ((start, src, dst), (start + edge_index.size(1), dst, src)):
            fields = [row * num_nodes + column]
            if has_numbers:
                fields.append(torch.arange(number, number + row.numel()))
            found.add(row, *fields)
    return found


def undirected_csr(
    edge_index: Tensor, num_nodes: int, *, scratch: Scratch | None = None
) -> tuple[Int64Array, Int64Array]:
    """The graph symmetric, without duplicate edges and self loops.

    Gives indptr int64 [N + 1] and index int64, the neighbours of every node in ascending order;
    64-bit, as METIS takes nothing else without a copy. Works in memory if `scratch` is None.
    """
    whole = torch.tensor([0, num_nodes])
    return next(undirected_csrs(edge_index, whole, scratch or Scratch()))


def undirected_csrs(
    edge_index: Tensor, bounds: Tensor, scratch: Scratch
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """One by one, what :func:`undirected_csr` gives of runs of nodes that no edge leaves.

    Nodes are numbered from 0 in every run. `bounds` is int64 [R + 1]: run r has the nodes
    ``bounds[r]`` to ``bounds[r + 1]``.
    """
    starts: list[int] = bounds.tolist()
    indptr, columns = _neighbours(edge_index, starts[-1], scratch, keep_duplicates=False)
    for start, stop in pairwise(starts):
        yield _run_csr(indptr[start : stop + 1], columns, start)


def _run_csr(ptr: Tensor, columns: Tensor, start: int) -> tuple[Int64Array, Int64Array]:
    index = _in_memory(columns[ptr[0] : ptr[-1]], np.int64)
    if start:
        index -= start
        ptr = ptr - ptr[0]
    return ptr.numpy(), index


def symmetric_csr(
    edge_index: Tensor, num_nodes: int, *, scratch: Scratch | None = None
) -> tuple[Int64Array, IndexArray]:
    """The graph symmetric, with its duplicates, and with self loops twice.

    Gives indptr int64 [N + 1] and index int32 (int64 from 2**31 nodes on).
    """
    scratch = scratch or Scratch()
    indptr, columns = _neighbours(edge_index, num_nodes, scratch, keep_duplicates=True)
    return indptr.numpy(), _in_memory(columns, np.int32 if num_nodes < 2**31 else np.int64)


def _neighbours(
    edge_index: Tensor, num_nodes: int, scratch: Scratch, *, keep_duplicates: bool
) -> tuple[Tensor, Tensor]:
    """Where the neighbours of every node begin, and the neighbours in scratch space."""
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
        place = columns[end : end + column.numel()]
        place[:] = column
        release(place)
        end += column.numel()
        del keys, row, column
    indptr.cumsum_(0)
    trim()
    return indptr, columns[:end]


def _in_memory(columns: Tensor, dtype: type) -> IndexArray:
    index: IndexArray = np.empty(columns.numel(), dtype=dtype)
    for start, stop in ranges(index.size):
        part = columns[start:stop]
        index[start:stop] = part.numpy()
        release(part)
    return index


def neighbours_by_part(
    indptr: IndexArray,
    index: IndexArray,
    parts: Int64Array,
    nodes: slice | Int64Array,
    num_parts: int,
) -> FloatArray:
    """How many neighbours each of some nodes has in every part, [B, P].

    `parts` is int64 [N], the part of every node or -1; `nodes` a run of nodes, or int64 [B].
    """
    if isinstance(nodes, slice):
        ptr = indptr[nodes.start : nodes.stop + 1]
        degree, neighbours = np.diff(ptr), index[ptr[0] : ptr[-1]]
    else:
        first = indptr[nodes]
        degree = indptr[nodes + 1] - first
        shift = np.repeat(first - (np.cumsum(degree) - degree), degree)
        neighbours = index[shift + np.arange(len(shift))]
    row = np.repeat(np.arange(len(degree)), degree)
    # Column 0 collects neighbours without a part.
    cell = row * (num_parts + 1) + parts[neighbours] + 1
    count = np.bincount(cell, minlength=len(degree) * (num_parts + 1))
    return count.reshape(-1, num_parts + 1)[:, 1:].astype(np.float64)
