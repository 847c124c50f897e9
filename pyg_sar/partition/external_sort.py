"""Sorting more records than memory holds: first into buckets on disk, then each by itself.

The graph as partitioners read it is made so, too: every edge is dealt, both ways, into buckets of
consecutive rows, and one bucket at a time is sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition import memmap
from pyg_sar.partition.memmap import (
    MEMORY,
    FloatArray,
    IndexArray,
    Int64Array,
    Scratch,
    edge_chunks,
    ranges,
)


class Buckets:
    """Records of items, grouped by ranges of items, in the order in which they came.

    A bucket has a 128th of all records at most, or else one item. Item i will have
    ``item_ptr[i + 1] - item_ptr[i]`` records, with fields of `dtypes`. The items `cuts`, ascending
    from 0 to N, begin a bucket in any case. Bucket b has the items ``bounds[b]`` to
    ``bounds[b + 1]``; `columns` are the fields of all records, in the order of the buckets.
    """

    def __init__(
        self,
        item_ptr: Tensor,
        dtypes: Sequence[torch.dtype],
        scratch: Scratch,
        cuts: Tensor | None = None,
    ) -> None:
        num_items, count = item_ptr.numel() - 1, int(item_ptr[-1])
        self.bounds = _bounds(item_ptr, torch.tensor([0, num_items]) if cuts is None else cuts)
        self._ptr: list[int] = item_ptr[self.bounds].tolist()
        numbers = torch.arange(len(self), dtype=torch.int32)
        self._bucket_of = numbers.repeat_interleave(self.bounds.diff())
        self.columns = [scratch.empty((count,), dtype) for dtype in dtypes]
        self._ends = self._ptr[:-1]

    def __len__(self) -> int:
        return self.bounds.numel() - 1

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Every bucket with its first item and the one after its last."""
        return ((b, start, stop) for b, (start, stop) in enumerate(pairwise(self.bounds.tolist())))

    def add(self, items: Tensor, *fields: Tensor) -> None:
        """Appends records of items, integer [n]; a field is a tensor [n]."""
        counts, ordered = [items.numel()], iter(fields)
        if len(self) > 1:
            bucket = self._bucket_of.index_select(0, items)
            counts = bucket.bincount(minlength=len(self)).tolist()
            order = stable_order(bucket, len(self))
            ordered = (field.index_select(0, order) for field in fields)
        for column, field in zip(self.columns, ordered, strict=True):
            runs = torch.split(field.to(column.dtype), counts)
            for end, run in zip(self._ends, runs, strict=True):
                column[end : end + run.numel()] = run
        self._ends = [end + count for end, count in zip(self._ends, counts, strict=True)]

    def read(self, bucket: int, number: int = 0) -> Tensor:
        """One field of the records of one bucket, in memory, int64."""
        column = self.columns[number][self._ptr[bucket] : self._ptr[bucket + 1]]
        return column.to(torch.int64, copy=True)


def _bounds(ptr: Tensor, cuts: Tensor) -> Tensor:
    most = max(4 * memmap.CHUNK_ROWS, int(ptr[-1]) // memmap.SHARE)  # few buckets take fewer writes
    bounds = [cuts]
    for start, stop in pairwise(cuts.tolist()):
        first, last = int(ptr[start]), int(ptr[stop])
        targets = torch.arange(first, max(last, first + 1), most)[1:]
        bounds.append(torch.searchsorted(ptr[: stop + 1], targets, right=True) - 1)
    return torch.unique(torch.cat(bounds))


def stable_order(keys: Tensor, bound: int) -> Tensor:
    """The stable order of integers [n] in [0, `bound`), int64 [n].

    Sorting is several times as fast as finding an order, so the position of each number is appended
    to it in binary, where 64 bits suffice.
    """
    count = keys.numel()
    bits = max(count - 1, 0).bit_length()
    if (bound - 1) << bits >= 1 << 63:
        return torch.from_numpy(np.argsort(keys.numpy(), kind='stable'))
    packed = torch.arange(count).add_(keys, alpha=1 << bits)
    packed.numpy().sort()
    return packed.bitwise_and_((1 << bits) - 1)


def count_to_ptr(ids: Iterable[Tensor], bound: int) -> Tensor:
    """Where the records of every item begin and end, int64 [bound + 1]; `ids` by chunks."""
    ptr = torch.zeros(bound + 1, dtype=torch.int64)
    for part in ids:
        memmap.count_into(ptr[1:], part)
    return ptr.cumsum_(0)


def counts_to_ptr(counts: Tensor) -> Tensor:
    """Where runs of these lengths begin and end, int64 [n + 1]."""
    ptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=ptr[1:])
    return ptr


def both_ways(
    edge_index: Tensor, num_nodes: int, scratch: Scratch, *, has_loops: bool = False
) -> Buckets:
    """Records ``row * N + column`` of every edge [2, E] and its reverse, by row.

    One number is below 2^63 for up to 3 * 10^9 nodes. Self loops are twice there, or not at all.
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
    """The neighbours of every node, in ascending order."""

    indptr: Tensor  # int64 [N + 1]: node v has ``columns[indptr[v]:indptr[v + 1]]``
    columns: Tensor  # int64, in scratch space

    def csr(
        self, start: int = 0, stop: int | None = None, dtype: type = np.int64
    ) -> tuple[Int64Array, IndexArray]:
        """The neighbours of a run of nodes that no edge leaves, in memory and numbered from 0."""
        ptr = self.indptr[start:] if stop is None else self.indptr[start : stop + 1]
        columns = self.columns[ptr[0] : ptr[-1]]
        index: IndexArray = np.empty(columns.numel(), dtype=dtype)
        for first, last in ranges(index.size):
            part = columns[first:last].numpy()
            np.subtract(part, start, out=index[first:last], casting='same_kind')
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
        columns[end : end + column.numel()] = column
        end += column.numel()
        del keys, row, column
    indptr.cumsum_(0)
    return Neighbours(indptr, columns[:end])


def neighbours_by_part(
    indptr: IndexArray, index: IndexArray, parts: Int64Array, nodes: slice, num_parts: int
) -> FloatArray:
    """How many neighbours each of a run of nodes has in every part, [B, P].

    `parts` is int64 [N], the part of every node or -1.
    """
    ptr = indptr[nodes.start : nodes.stop + 1]
    degree, neighbours = np.diff(ptr), index[ptr[0] : ptr[-1]]
    row = np.repeat(np.arange(len(degree)), degree)
    # Column 0 collects neighbours without a part.
    cell = row * (num_parts + 1) + parts[neighbours] + 1
    count = np.bincount(cell, minlength=len(degree) * (num_parts + 1))
    return count.reshape(-1, num_parts + 1)[:, 1:].astype(np.float64)
