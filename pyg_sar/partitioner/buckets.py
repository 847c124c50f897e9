"""Sorting more records than memory holds: first into buckets on disk, then each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.mapped import Scratch, release
from pyg_sar.partitioner.rows import CHUNK_ROWS

_BUCKETS = 128
"""Buckets that many records are dealt into: what is made of one at a time is then small beside
all of them."""


class Buckets:
    """Records grouped by bucket, in the order in which they came.

    Attributes:
        ptr: Bucket b holds the records ``ptr[b]`` to ``ptr[b + 1]``, int64 [B + 1].
        columns: The fields of the records, each of one value per record.
    """

    def __init__(self, ptr: Tensor, dtypes: Sequence[torch.dtype], scratch: Scratch) -> None:
        self.ptr = ptr
        self.columns = [scratch.empty((int(ptr[-1]),), dtype) for dtype in dtypes]
        self._ends: list[int] = ptr[:-1].tolist()

    def add(self, bucket: Tensor, *fields: Tensor) -> None:
        """Appends records, each to its bucket.

        Args:
            bucket: Integer [n].
            fields: One tensor [n] for each column.
        """
        order = stable_order(bucket, len(self._ends))
        counts = bucket.bincount(minlength=len(self._ends)).tolist()
        self._append(counts, [field.index_select(0, order) for field in fields])

    def extend(self, *fields: Tensor) -> None:
        """Appends records to the only bucket there is."""
        self._append([fields[0].numel()], fields)

    def _append(self, counts: Sequence[int], ordered: Sequence[Tensor]) -> None:
        start = 0
        for number, count in enumerate(counts):
            if count:
                end = self._ends[number]
                for column, values in zip(self.columns, ordered, strict=True):
                    column[end : end + count] = values[start : start + count]
                self._ends[number] += count
                start += count
        release(*self.columns)

    def read(self, bucket: int) -> list[Tensor]:
        """The records of one bucket in memory, field by field, integers as int64."""
        start, stop = self.ptr[bucket : bucket + 2].tolist()
        found = [column[start:stop].to(torch.int64, copy=True) for column in self.columns]
        release(*(column[start:stop] for column in self.columns))
        return found


def stable_order(keys: Tensor, bound: int) -> Tensor:
    """The stable order of integers [n] in [0, `bound`), int64 [n].

    Numbers are sorted several times as fast as the order of numbers is found, so the position of
    each is appended to it in binary, where 64 bits suffice.
    """
    count = keys.numel()
    bits = max(count - 1, 0).bit_length()
    if (bound - 1) << bits >= 1 << 63:
        return torch.from_numpy(np.argsort(keys.numpy(), kind='stable'))
    packed = keys.to(torch.int64, copy=True).bitwise_left_shift_(bits)
    packed.bitwise_or_(torch.arange(count))
    packed.numpy().sort()
    return packed.bitwise_and_((1 << bits) - 1)


def bucket_of(bounds: Tensor) -> Tensor:
    """The bucket of every item, int32 [N], from what :func:`bucket_bounds` gives."""
    numbers = torch.arange(bounds.numel() - 1, dtype=torch.int32)
    return numbers.repeat_interleave(bounds.diff())


def bucket_bounds(ptr: Tensor, within: Tensor) -> Tensor:
    """Cuts a range of items into buckets of a 128th of all records, and those of one item at most.

    Args:
        ptr: Item i has the records ``ptr[i]`` to ``ptr[i + 1]``, int64 [N + 1].
        within: Items that must begin a bucket, ascending from 0 to N.

    Returns:
        The first item of every bucket and N at the end, int64 ascending.
    """
    most = max(CHUNK_ROWS, int(ptr[-1]) // _BUCKETS)
    cuts = [within]
    for start, stop in pairwise(within.tolist()):
        first, last = int(ptr[start]), int(ptr[stop])
        targets = torch.arange(first, max(last, first + 1), most)[1:]
        cuts.append(torch.searchsorted(ptr[: stop + 1], targets, right=True) - 1)
    bounds: Tensor = torch.unique(torch.cat(cuts))
    return bounds


def counts_to_ptr(counts: Tensor) -> Tensor:
    """Where the runs of the given lengths begin and end, int64 [n + 1]."""
    ptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=ptr[1:])
    return ptr
