"""All storages of a run that may be evicted, with the ranks that own and use them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pyg_sar.launch.in_turns.places import OnDisk, OnHost
from pyg_sar.launch.in_turns.spill_file import SpillFile
from pyg_sar.launch.in_turns.tiers import Away, Clock, Held, Tier
from pyg_sar.utils.log import bytes_text

LEAST_BYTES = 64 << 10
"""Smaller storages are not evicted."""


@dataclass
class Figures:
    """Bytes that were moved so far.

    Attributes:
        evictions: How often the memory of a tensor was taken away.
        written: Bytes written to the disk.
        read: Bytes read from it.
        read_of_others: Bytes of it that another rank than the one that reads has made: rows of
            other parts, with those between them that lie in the same pages.
        peak: Bytes of large tensors in memory of the host, at most; with what waits there for GPUs.
        device_peak: Bytes of large tensors on one GPU, at most.
        to_host: Bytes that were copied from GPUs to wait.
        to_device: Bytes that were copied back.
        largest: Bytes of the largest tensor.
        disk: Bytes of the file.
    """

    evictions: int = 0
    written: int = 0
    read: int = 0
    read_of_others: int = 0
    peak: int = 0
    device_peak: int = 0
    to_host: int = 0
    to_device: int = 0
    largest: int = 0
    disk: int = 0

    def __str__(self) -> str:
        """The figures in words."""
        phrases = [f'{bytes_text(self.peak)} of large tensors at most']
        if self.device_peak:
            phrases = [f'{bytes_text(self.device_peak)} of large tensors on a GPU at most']
            phrases.append(f'{bytes_text(self.peak)} in memory of the host')
        phrases += [f'{bytes_text(self.written)} written', f'{bytes_text(self.read)} read']
        if self.read_of_others:
            phrases.append(f'of that {bytes_text(self.read_of_others)} of other parts')
        return ', '.join(phrases)


class Evictions:
    """The storages of all ranks of a run, those of `least` bytes or more.

    `budget` bytes may be on a GPU between operations, if turns need no more, and `host_budget` in
    memory of the host; `file` is where to evict to from there, None if that is never exceeded.
    """

    def __init__(
        self,
        budget: int,
        host_budget: int,
        file: SpillFile | None,
        num_ranks: int,
        least: int = LEAST_BYTES,
    ) -> None:
        self.budget, self.file, self.least = budget, file, least
        self._clock = Clock(num_ranks)
        self._host = Tier(host_budget, self._clock, self._on_disk)
        self._devices: dict[torch.device, Tier] = {}
        self._moved = [0, 0]
        self._read_of_others = 0
        self._held: dict[int, Held] = {}
        self._lock = threading.RLock()  # memory is freed, and noted as such, in any of the calls

    def begin(self, rank: int) -> None:
        """The turn of a rank begins."""
        with self._lock:
            for device in self._devices:  # nothing that others touched is under way
                torch.cuda.synchronize(device)
            self._clock.begin(rank)
            for tier in (*self._devices.values(), self._host):
                tier.begin()

    def note(self, storage: torch.UntypedStorage) -> None:
        """Takes care of a storage from now on."""
        num_bytes, key = storage.nbytes(), storage._cdata
        if num_bytes < self.least or key in self._held or not storage.resizable():
            return
        with self._lock:
            tier, clock = self._tier_of(storage.device), self._clock
            if tier is None:
                return
            held = Held(
                weakref.ref(storage, self._forgetting(key)),
                tier,
                *(num_bytes, num_bytes),
                *(clock.rank, clock.turn, clock.turn, clock.turn),
            )
            self._held[key] = held
            clock.has_touched = True
            tier.add(held)
            tier.make_room(0)

    def needs(self, storage: torch.UntypedStorage, *, is_written: bool) -> None:
        """Brings a storage into memory until the turn ends."""
        held, clock = self._held.get(storage._cdata), self._clock
        if held is None:
            return
        if held.turn == clock.turn and not (held.is_away or is_written):
            return
        with self._lock:
            held.turn = clock.turn
            if held.rank == clock.rank:
                held.own_turn, clock.has_touched = clock.turn, True
            if held.is_away:
                with self._counting(held):
                    held.tier.bring(held, storage)
            if is_written:
                self._will_change(held)

    def leaves(self, storage: torch.UntypedStorage) -> None:
        """Lets a storage of another rank be evicted before the turn ends."""
        held, clock = self._held.get(storage._cdata), self._clock
        if held is not None and held.rank != clock.rank and held.turn == clock.turn:
            held.tier.leave(held)

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Never evicts a storage from now on."""
        held = self._held.get(storage._cdata)
        if held is not None and not held.stays:
            with self._lock:
                if held.is_away:
                    held.tier.bring(held, storage)
                self._will_change(held)  # changes are not seen from now on
                held.stays = True

    def is_read_by_rows(self, storage: torch.UntypedStorage) -> bool:
        """Whether to read single rows: it is away, and another rank's or larger than the room."""
        held = self._held.get(storage._cdata)
        if held is None or not held.is_away:
            return False
        is_others = held.rank != self._clock.rank
        return is_others or held.tier.here + held.taken > held.tier.budget

    @contextmanager
    def reading(self, storage: torch.UntypedStorage) -> Iterator[Away]:
        """Where the bytes of a storage that is away wait; they stay there for that time."""
        held = self._held[storage._cdata]
        with self._lock, self._counting(held):
            assert held.away is not None
            yield held.away

    def before_writing(
        self, storages: Sequence[torch.UntypedStorage], offer: Any, settle: Callable[[Any], None]
    ) -> bool:
        """Has `settle` called with an offer, if it still lives, before any storage is written to.

        False where it would not be noticed.
        """
        held = [self._held.get(storage._cdata) for storage in storages]
        seen = [entry for entry in held if entry is not None and not entry.stays]
        if len(seen) < len(held):
            return False
        for entry in seen:
            entry.offers = [pair for pair in entry.offers if pair[0]() is not None]
            entry.offers.append((weakref.ref(offer), settle))
        return True

    def has_changed_size(self, storage: torch.UntypedStorage) -> None:
        """Notes the size of a storage that was written to."""
        held = self._held.get(storage._cdata)
        if held is not None and held.num_bytes != storage.nbytes():
            with self._lock:
                self._forget(storage._cdata)
            self.note(storage)
            if held.stays:
                self.keep(storage)

    def restore(self) -> None:
        """Brings everything back into memory, at the end.

        Raises an OSError afterwards if some could not be read: its numbers are NaN then, or -1.
        """
        error = None
        with self._lock:
            for tier in (self._host, *self._devices.values()):
                tier.budget = sys.maxsize
            for held in list(self._held.values()):
                storage = held.storage()
                if held.is_away and storage is not None:
                    try:
                        held.tier.bring(held, storage)
                    except OSError as of_disk:
                        held.tier.fill(held, storage, _spoil)
                        error = error or of_disk
        if error is not None:
            raise error

    def close(self) -> None:
        """Gives disk space and memory of the host back, when nobody moves anything."""
        with self._lock:
            for held in self._held.values():
                held.tier.forget(held)
            if self.file is not None:
                self.file.close()

    def counted(self) -> Figures:
        """The figures up to now."""
        host, devices, file = self._host, list(self._devices.values()), self.file
        figures = Figures(
            evictions=sum(tier.evictions for tier in (host, *devices)),
            peak=host.peak,
            device_peak=max((tier.peak for tier in devices), default=0),
            to_host=self._moved[0],
            to_device=self._moved[1],
            largest=max(tier.largest for tier in (host, *devices)),
        )
        if file is not None:
            figures.written, figures.read, figures.disk = file.written, file.read, file.num_bytes
            figures.read_of_others = self._read_of_others
        return figures

    @contextmanager
    def _counting(self, held: Held) -> Iterator[None]:
        before = 0 if self.file is None else self.file.read
        yield
        if self.file is not None and held.rank != self._clock.rank:
            self._read_of_others += self.file.read - before

    def _on_disk(self, held: Held) -> Away:
        assert self.file is not None
        return OnDisk(self.file, held.num_bytes)

    def _on_host(self, held: Held) -> Away:
        return OnHost(self._host, held, self._moved)

    def _tier_of(self, device: torch.device) -> Tier | None:
        """The tier of memory that is taken now; None if another stream's, or another kind's."""
        if device.type == 'cpu':
            return self._host
        if device.type != 'cuda':
            return None
        if device not in self._devices:
            self._devices[device] = Tier(self.budget, self._clock, self._on_host)
        # A stream of the program would have to be waited for, here and where memory is freed.
        if torch.cuda.current_stream(device) != torch.cuda.default_stream(device):
            return None
        return self._devices[device]

    def _will_change(self, held: Held) -> None:
        if held.away is not None:
            held.away.outdate()
        while held.offers:
            reference, settle = held.offers[-1]
            offer = reference()
            if offer is not None:
                settle(offer)
            held.offers.pop()

    def _forgetting(self, key: int) -> Callable[[object], None]:
        this = weakref.ref(self)

        def forget(reference: object) -> None:
            evictions = this()
            held = None if evictions is None else evictions._held.get(key)
            if evictions is not None and held is not None and held.storage is reference:
                with evictions._lock:
                    evictions._forget(key)

        return forget

    def _forget(self, key: int) -> None:
        held = self._held.pop(key)
        held.tier.forget(held)


def _spoil(storage: torch.UntypedStorage) -> None:
    torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).fill_(0xFF)
