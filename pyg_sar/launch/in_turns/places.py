"""Where the bytes of a storage wait: on a disk, or in memory of the host if it is a GPU's.

Memory of the host that holds bytes of a GPU is a storage like others, and goes to the disk as they
do. It is pinned, so that a GPU reads and writes it itself. Copies between both are waited for: the
memory that they read or write may be given to others at once.
"""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.launch.in_turns.spill_file import SpillFile
from pyg_sar.launch.in_turns.tiers import Held, Tier


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
