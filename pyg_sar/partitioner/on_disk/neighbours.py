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

from pyg_sar.partitioner.on_disk.buckets import Buckets, bucket_bounds, bucket_of, count_to_ptr
from pyg_sar.partitioner.on_disk.mapped import (
    FloatArray,
    IndexArray,
    Int64Array,
    Scratch,
    release,
    trim,
)
from pyg_sar.partitioner.on_disk.rows import chunk_rows, edge_chunks, ranges


class BothWays:
    """Records ``row * N + column`` of every edge and its reverse, in `buckets` of rows.

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

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        scratch: Scratch,
        *,
        has_loops: bool = False,
        has_numbers: bool = False,
    ) -> None:
        def edges() -> Iterator[tuple[int, Tensor, Tensor]]:
            for start, src, dst in edge_chunks(edge_index):
                if not has_loops:
                    kept = src != dst
                    src, dst = src[kept], dst[kept]
                yield start, src, dst

        ptr = count_to_ptr((ids for _, *ends in edges() for ids in ends), num_nodes)
        cuts = bucket_bounds(ptr, torch.tensor([0, num_nodes]))
        dtypes = [torch.int64] * (1 + has_numbers)
        self.buckets = Buckets(ptr[cuts], dtypes, scratch)
        self._bounds: list[int] = cuts.tolist()
        del ptr
        bucket = bucket_of(cuts)
        for start, src, dst in edges():
            for number, row, column in ((start, src, dst), (start + edge_index.size(1), dst, src)):
                fields = [row * num_nodes + column]
                if has_numbers:
                    fields.append(torch.arange(number, number + row.numel()))
                self.buckets.add(bucket.index_select(0, row), *fields)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Every bucket with its first row and the one after its last."""
        return ((b, start, stop) for b, (start, stop) in enumerate(pairwise(self._bounds)))


def undirected_csr(
    edge_index: Tensor, num_nodes: int, *, scratch: Scratch | None = None
) -> tuple[Int64Array, Int64Array]:
    """The graph symmetric, without duplicate edges and self loops.

    Gives indptr int64 [N + 1] and index int64, the neighbours of every node in ascending order;
    64-bit, as METIS takes nothing else without a copy. Works in memory if `scratch` is None.
    """
    indptr, columns = _neighbours(edge_index, num_nodes, scratch, keep_duplicates=False)
    return indptr.numpy(), _in_memory(columns, np.int64)


def undirected_csrs(
    edge_index: Tensor, bounds: Tensor, scratch: Scratch
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """The same of runs of nodes that no edge leaves, each numbered from 0, one at a time.

    `bounds` is int64 [R + 1]: run r has the nodes ``bounds[r]`` to ``bounds[r + 1]``.
    """
    starts: list[int] = bounds.tolist()
    indptr, columns = _neighbours(edge_index, starts[-1], scratch, keep_duplicates=False)
    for start, stop in pairwise(starts):
        yield _run_csr(indptr[start : stop + 1], columns, start)


def _run_csr(ptr: Tensor, columns: Tensor, start: int) -> tuple[Int64Array, Int64Array]:
    index = _in_memory(columns[ptr[0] : ptr[-1]], np.int64)
    index -= start
    return (ptr - ptr[0]).numpy(), index


def symmetric_csr(
    edge_index: Tensor, num_nodes: int, *, scratch: Scratch | None = None
) -> tuple[Int64Array, IndexArray]:
    """The same with duplicates, and self loops twice; index int32 (int64 from 2**31 nodes on)."""
    indptr, columns = _neighbours(edge_index, num_nodes, scratch, keep_duplicates=True)
    return indptr.numpy(), _in_memory(columns, np.int32 if num_nodes < 2**31 else np.int64)


def _neighbours(
    edge_index: Tensor, num_nodes: int, scratch: Scratch | None, *, keep_duplicates: bool
) -> tuple[Tensor, Tensor]:
    """Where the neighbours of every node begin, and the neighbours in scratch space."""
    edges = BothWays(edge_index, num_nodes, scratch or Scratch(), has_loops=keep_duplicates)
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    columns, end = edges.buckets.columns[0], 0
    for bucket, start, stop in edges.rows():
        keys: Int64Array = edges.buckets.read(bucket).numpy()
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
    for start, stop in ranges(index.size, chunk_rows(index.size)):
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
