"""Sorting more records than memory holds: first into buckets on disk, then each by itself.

Buckets are written with pwrite: a write through a map counts as memory and costs a fault per page.
Their files are unlinked and allocated beforehand, so a full disk is known at once and a kill leaves
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.mapped import Scratch, release
from pyg_sar.partitioner.on_disk.rows import CHUNK_ROWS, SHARE, count_into


class Buckets:
    """Records grouped by bucket, in the order in which they came.

    Attributes:
        ptr: Bucket b holds the records ``ptr[b]`` to ``ptr[b + 1]``, int64 [B + 1].
        columns: The fields of the records, each of one value per record.
    """

    def __init__(self, ptr: Tensor, dtypes: Sequence[torch.dtype], scratch: Scratch) -> None:
        self.ptr = ptr
        opened = [scratch.open((int(ptr[-1]),), dtype) for dtype in dtypes]
        self.columns = [column for column, _ in opened]
        self._files = [file for _, file in opened]
        self._ends: list[int] = ptr[:-1].tolist()
        self._missing = int(ptr[-1])

    def add(self, bucket: Tensor, *fields: Tensor) -> None:
        """Appends records, each to its bucket, an integer [n]; a field is a tensor [n]."""
        order = stable_order(bucket, len(self._ends))
        counts = bucket.bincount(minlength=len(self._ends)).tolist()
        self._append(counts, (field.index_select(0, order) for field in fields))

    def extend(self, *fields: Tensor) -> None:
        """Appends records to the only bucket there is."""
        self._append([fields[0].numel()], fields)

    def _append(self, counts: Sequence[int], ordered: Iterable[Tensor]) -> None:
        for column, file, field in zip(self.columns, self._files, ordered, strict=True):
            values, start = field.to(column.dtype).numpy(), 0
            for end, count in zip(self._ends, counts, strict=True):
                if count and file is None:
                    column[end : end + count] = torch.from_numpy(values[start : start + count])
                elif count and file is not None:
                    _write(file.fileno(), values[start : start + count].data, end * values.itemsize)
                start += count
        self._ends = [end + count for end, count in zip(self._ends, counts, strict=True)]
        self._missing -= sum(counts)
        if self._missing == 0:  # Open files are few.
            for file in self._files:
                if file is not None:
                    file.close()

    def read(self, bucket: int, number: int = 0) -> Tensor:
        """One field of the records of one bucket, in memory, int64."""
        start, stop = self.ptr[bucket : bucket + 2].tolist()
        place = self.columns[number][start:stop]
        found = place.to(torch.int64, copy=True)
        release(place)
        return found

    def reorder(self, bucket: int, order: Tensor) -> None:
        """Puts the records of one bucket, which is complete, into another order, int64 [n]."""
        for number, column in enumerate(self.columns):
            place = column[slice(*self.ptr[bucket : bucket + 2].tolist())]
            place[:] = self.read(bucket, number).index_select(0, order)
            release(place)


def _write(file: int, content: memoryview, offset: int) -> None:
    content = content.cast('B')
    while content:
        done = os.pwrite(file, content, offset)
        content, offset = content[done:], offset + done


def stable_order(keys: Tensor, bound: int) -> Tensor:
    """The stable order of integers [n] in [0, `bound`), int64 [n].

    Numbers are sorted several times as fast as the order of numbers is found, so the position of
    each is appended to it in binary, where 64 bits suffice.
    """
    count = keys.numel()
    bits = max(count - 1, 0).bit_length()
    if (bound - 1) << bits >= 1 << 63:
        return torch.from_numpy(np.argsort(keys.numpy(), kind='stable'))
    packed = torch.arange(count).add_(keys, alpha=1 << bits)
    packed.numpy().sort()
    return packed.bitwise_and_((1 << bits) - 1)


def bucket_of(bounds: Tensor) -> Tensor:
    """The bucket of every item, int32 [N], from :func:`bucket_bounds`."""
    numbers = torch.arange(bounds.numel() - 1, dtype=torch.int32)
    return numbers.repeat_interleave(bounds.diff())


def bucket_bounds(ptr: Tensor, within: Tensor) -> Tensor:
    """Cuts a range of items into buckets of a 128th of all records, and those of one item at most.

    Item i has the records ``ptr[i]`` to ``ptr[i + 1]``, int64 [N + 1]. The items `within`,
    ascending from 0 to N, begin a bucket each. Gives the first item of every bucket and N at the
    end, int64 ascending.
    """
    most = max(4 * CHUNK_ROWS, int(ptr[-1]) // SHARE)  # few buckets take fewer writes
    cuts = [within]
    for start, stop in pairwise(within.tolist()):
        first, last = int(ptr[start]), int(ptr[stop])
        targets = torch.arange(first, max(last, first + 1), most)[1:]
        cuts.append(torch.searchsorted(ptr[: stop + 1], targets, right=True) - 1)
    return torch.unique(torch.cat(cuts))


def count_to_ptr(ids: Iterable[Tensor], bound: int) -> Tensor:
    """Where the records of every item begin and end, int64 [bound + 1]; `ids` by chunks."""
    ptr = torch.zeros(bound + 1, dtype=torch.int64)
    for part in ids:
        count_into(ptr[1:], part)
    return ptr.cumsum_(0)


def counts_to_ptr(counts: Tensor) -> Tensor:
    """Where the runs of the given lengths begin and end, int64 [n + 1]."""
    ptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=ptr[1:])
    return ptr
