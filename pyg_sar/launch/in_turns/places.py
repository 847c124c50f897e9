"""Where the bytes of a storage wait, and rows of a tensor that waits.

The bytes wait on a disk, or in memory of the host if the storage is a GPU's.

Memory of the host that holds bytes of a GPU is a storage like others, and may go to the disk. Such
memory is pinned, so that a GPU reads and writes it. A copy between host and GPU ends before the
program goes on, as other storages may get its memory at once.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.launch.in_turns.spill_file import SpillFile
from pyg_sar.launch.in_turns.tiers import Away, Held, Tier
from pyg_sar.utils.offload import address_of

_PAGE = 4096
_SPAN_BYTES = 1 << 20
"""The most that one read gets, if some of it is not needed."""


class OnDisk:
    """Bytes in a file."""

    def __init__(self, file: SpillFile, num_bytes: int) -> None:
        self._file, self._num_bytes = file, num_bytes
        self._offset = file.take(num_bytes)
        self.has_it = False

    def write(self, storage: torch.UntypedStorage) -> None:
        """See :class:`pyg_sar.launch.in_turns.tiers.Away`, also below."""
        self._file.write(storage.data_ptr(), self._num_bytes, self._offset)
        self.has_it = True

    def read(self, storage: torch.UntypedStorage) -> None:  # noqa: D102
        self._file.announce(self._num_bytes, self._offset)
        self._file.get(storage.data_ptr(), self._num_bytes, self._offset)

    def outdate(self) -> None:  # noqa: D102
        self.has_it = False

    def announce(self, num_bytes: int, start: int) -> None:  # noqa: D102
        self._file.announce(num_bytes, self._offset + start)

    def read_part(self, address: int, num_bytes: int, start: int) -> None:  # noqa: D102
        self._file.get(address, num_bytes, self._offset + start)

    def in_host_memory(self) -> torch.UntypedStorage | None:  # noqa: D102
        return None

    def free(self) -> None:  # noqa: D102
        self._file.give_back(self._offset, self._num_bytes)


class OnHost:
    """Bytes in memory of the host, from where they may go on to a disk."""

    def __init__(self, host: Tier, owner: Held, moved: list[int]) -> None:
        self._host, self._owner, self._moved = host, owner, moved
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            pinned = torch.empty(0, dtype=torch.uint8, device='cpu', pin_memory=True)
            self._storage = pinned.untyped_storage()
        num_bytes = owner.num_bytes
        self._held = Held(
            weakref.ref(self._storage),
            host,
            num_bytes,
            1 << (num_bytes - 1).bit_length(),  # CachingHostAllocator.h rounds up
            *(owner.rank, owner.born, owner.own_turn, owner.turn),
            is_away=True,
            owner=owner,
        )

    @property
    def has_it(self) -> bool:  # noqa: D102
        away = self._held.away
        return not self._held.is_away or (away is not None and away.has_it)

    def write(self, storage: torch.UntypedStorage) -> None:  # noqa: D102
        own, owner = self._held, self._owner
        own.rank, own.own_turn, own.turn = owner.rank, owner.own_turn, owner.turn
        self._host.fill(own, self._storage, lambda there: _copy(there, storage))
        self._moved[0] += own.num_bytes

    def read(self, storage: torch.UntypedStorage) -> None:  # noqa: D102
        if self._held.is_away:
            self._host.bring(self._held, self._storage)
        _copy(storage, self._storage)
        self._moved[1] += self._held.num_bytes
        self._host.spare(self._held, self._storage)

    def outdate(self) -> None:  # noqa: D102
        if self._held.away is not None:
            self._held.away.outdate()
        if not self._held.is_away:
            self._host.empty(self._held, self._storage)

    def announce(self, num_bytes: int, start: int) -> None:  # noqa: D102
        if self._held.is_away and self._held.away is not None:
            self._held.away.announce(num_bytes, start)

    def read_part(self, address: int, num_bytes: int, start: int) -> None:  # noqa: D102
        away = self._held.away
        if self._held.is_away:
            assert away is not None
            away.read_part(address, num_bytes, start)
        else:
            ctypes.memmove(address, self._storage.data_ptr() + start, num_bytes)

    def in_host_memory(self) -> torch.UntypedStorage | None:  # noqa: D102
        return None if self._held.is_away else self._storage

    def free(self) -> None:  # noqa: D102
        self._host.forget(self._held)


def _copy(to: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Returns when it is done."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        to_bytes, from_bytes = (
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            for storage in (to, source)
        )
        to_bytes.copy_(from_bytes)


def read_run(out: Tensor, run: Tensor, away: Away) -> None:
    """A contiguous tensor into one on the host."""
    start = int(run.storage_offset()) * run.element_size()
    away.announce(run.nbytes, start)
    away.read_part(address_of(out), run.nbytes, start)


def read_rows(out: Tensor, tensor: Tensor, rows: np.ndarray[Any, Any], away: Away) -> None:
    """Rows of a contiguous tensor into a contiguous one on the host."""
    offset, there = int(tensor.storage_offset()), away.in_host_memory()
    if there is not None:
        whole = torch.empty(0, dtype=tensor.dtype, device='cpu')
        whole.set_(there, offset, tensor.shape, tensor.stride())
        torch.index_select(whole, 0, torch.from_numpy(rows), out=out)
        return
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    into = _bytes_at(address_of(out), len(rows), row_bytes)
    begin = offset * tensor.element_size()
    spans = [
        (first, last, int(rows[first]), int(rows[last - 1]) + 1)
        for first, last in _spans(rows, row_bytes)
    ]
    for _, _, low, high in spans:
        away.announce((high - low) * row_bytes, begin + low * row_bytes)
    for first, last, low, high in spans:
        is_run = high - low == last - first
        span = into[first:last] if is_run else np.empty((high - low, row_bytes), np.uint8)
        away.read_part(span.ctypes.data, (high - low) * row_bytes, begin + low * row_bytes)
        if not is_run:
            np.take(span, rows[first:last] - low, axis=0, out=into[first:last], mode='clip')


def _bytes_at(address: int, num_rows: int, row_bytes: int) -> np.ndarray[Any, Any]:
    """Memory as an array ``[num_rows, row_bytes]``."""
    memory = (ctypes.c_uint8 * (num_rows * row_bytes)).from_address(address)
    return np.asarray(memory).reshape(num_rows, row_bytes)


def _spans(rows: np.ndarray[Any, Any], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of `rows` that one read gets: ascending, with no page between two.

    A disk gives whole pages, and a call for every row takes longer than the rows between.
    """
    steps = np.diff(rows)
    ends = np.flatnonzero((steps < 1) | (steps > 1 + _PAGE // row_bytes)) + 1
    for first, last in pairwise([0, *ends.tolist(), len(rows)] if len(rows) else []):
        while first < last:
            bound = int(rows[first]) + max(_SPAN_BYTES // row_bytes, 1)
            end = first + int(np.searchsorted(rows[first:last], bound))
            yield first, end
            first = end
