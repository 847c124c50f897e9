"""Which memory of tensors is here and which is away, and what has to go.

A storage is emptied (``resize_(0)``) and filled again in the same object, so tensors, views and
what autograd has saved stay valid. What a turn has touched stays until the turn ends: no operation,
loop or thread of the rank that runs can lose what it works on. Where the budget is exceeded others'
memory goes, that which is needed last first:

1. what a rank did not touch in the last turn in which it touched anything (it lies deep in the
   autograd graph), least recently touched first;
2. what it touched then, but had made before;
3. what it made then: the next turn works on it.

Of 2 and 3 that of the rank goes first whose turn comes last. Ranks take turns in a circle, so this
is Belady's choice; the least recently used would be the worst one.

What was written to the disk once and has not changed since is not written again. What dies is
never written.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pyg_sar.in_turns.mapped_files import MappedFiles
from pyg_sar.in_turns.spill_file import SpillFile
from pyg_sar.monitor import bytes_text

LEAST_BYTES = 256 << 10
"""Of storages that are evicted."""


class OverMemory(ValueError):
    """A turn needs more bytes than a run may take."""

    def __init__(self, num_bytes: int, limit: int) -> None:
        super().__init__(
            f"expected 'memory' for the turn of one rank, {bytes_text(num_bytes)} or more (got "
            f'{bytes_text(limit)}; with more parts a turn needs less)'
        )
        self.num_bytes = num_bytes


@dataclass(eq=False, slots=True)
class Held:
    """A storage that may be evicted."""

    storage: weakref.ref[torch.UntypedStorage]
    num_bytes: int
    rank: int  # which has made it
    born: int  # the turn in which it did
    own_turn: int  # the last one in which that rank touched it
    turn: int  # the last one in which anybody did
    place: int = -1  # in the file
    is_away: bool = False
    is_written: bool = False  # whether its place holds what it holds
    stays: bool = False  # others may read and write it at any time
    # What is made of it by others later, and how to have it made before.
    offers: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = field(default_factory=list)


@dataclass
class Figures:
    """What was moved, so far.

    Attributes:
        evictions: How often the memory of a tensor was taken away.
        written: Bytes written.
        read: Bytes read.
        peak: Bytes of large tensors in memory, at most.
        largest: Bytes of the largest tensor.
        disk: Bytes of the file.
    """

    evictions: int = 0
    written: int = 0
    read: int = 0
    peak: int = 0
    largest: int = 0
    disk: int = 0


class Evictions:
    """The storages of all ranks of a run.

    Args:
        budget: Bytes that may be here between operations, if turns need no more.
        file: Where to evict to.
        num_ranks: How many ranks take turns.
        least: Bytes of the smallest storage that goes.
        limit: Bytes that nothing may exceed, else :class:`OverMemory` is raised; None for no limit.

    Attributes:
        over: The first OverMemory, whoever has caught it since.
    """

    def __init__(
        self,
        budget: int,
        file: SpillFile,
        num_ranks: int,
        least: int = LEAST_BYTES,
        limit: int | None = None,
    ) -> None:
        self.budget, self.file, self.num_ranks, self.least = budget, file, num_ranks, least
        self.limit = limit
        self.over: OverMemory | None = None
        self.figures = Figures()
        self.here = 0
        self.turn, self.rank = 0, 0
        self.files = MappedFiles()
        self._held: dict[int, Held] = {}
        self._last_turns = [0] * num_ranks  # in which a rank touched anything, but for this one
        self._has_touched = False
        self._queue: list[Held] | None = []
        self._lock = threading.RLock()  # memory is freed, and noted as such, in any of the calls

    def begin(self, rank: int) -> None:
        """The turn of a rank begins."""
        with self._lock:
            if self._has_touched:
                self._last_turns[self.rank] = self.turn
            self.turn += 1
            self.rank, self._queue, self._has_touched = rank, None, False
            self._make_room(0)
            if self.here + self.files.num_bytes() > self.budget:
                self.files.drop()

    def note(self, storage: torch.UntypedStorage) -> None:
        """Takes care of a storage from now on."""
        num_bytes = storage.nbytes()
        if num_bytes < self.least or storage._cdata in self._held or not storage.resizable():
            return
        with self._lock:
            key = storage._cdata
            held = Held(
                weakref.ref(storage, self._forgetting(key)),
                num_bytes,
                self.rank,
                self.turn,
                self.turn,
                self.turn,
            )
            self._held[key] = held
            self._has_touched = True
            self._add(num_bytes)
            self._make_room(0)

    def needs(self, storage: torch.UntypedStorage, *, is_written: bool) -> None:
        """Has a storage here until the turn ends."""
        held = self._held.get(storage._cdata)
        if held is None:
            if is_written:
                self.files.has_changed(storage)
            return
        with self._lock:
            held.turn = self.turn
            if held.rank == self.rank:
                held.own_turn, self._has_touched = self.turn, True
            if held.is_away:
                self._bring(held, storage)
            if is_written:
                held.is_written = False
                self._settle(held)

    def leaves(self, storage: torch.UntypedStorage) -> None:
        """Has a storage of another rank go before the turn ends, if need be."""
        held = self._held.get(storage._cdata)
        if held is not None and held.rank != self.rank and held.turn == self.turn:
            held.turn, self._queue = held.own_turn, None

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Leaves a storage here from now on."""
        held = self._held.get(storage._cdata)
        if held is not None and not held.stays:
            with self._lock:
                if held.is_away:
                    self._bring(held, storage)
                self._settle(held)  # its changes are not seen from now on
                held.stays = True

    def is_better_read(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is away that another rank has made, or that there is no room for."""
        held = self._held.get(storage._cdata)
        if held is None or not held.is_away:
            return False
        return held.rank != self.rank or self.here + held.num_bytes > self.budget

    def read_part(
        self, storage: torch.UntypedStorage, address: int, num_bytes: int, start: int
    ) -> None:
        """Reads bytes of a storage that is away, from `start` on, to an address."""
        self.file.get(address, num_bytes, self._held[storage._cdata].place + start)

    def before_writing(
        self, storages: Sequence[torch.UntypedStorage], offer: Any, settle: Callable[[Any], None]
    ) -> bool:
        """Has `settle` called with an offer, if it still lives, before any storage is written to.

        False where it would not be noticed.
        """
        held = [self._held.get(storage._cdata) for storage in storages]
        known = [each for each in held if each is not None and not each.stays]
        if len(known) < len(held):
            return False
        for each in known:
            each.offers = [pair for pair in each.offers if pair[0]() is not None]
            each.offers.append((weakref.ref(offer), settle))
        return True

    def has_changed_size(self, storage: torch.UntypedStorage) -> None:
        """Notes the size of a storage that was written to."""
        held = self._held.get(storage._cdata)
        if held is not None and held.num_bytes != storage.nbytes():
            with self._lock:
                self._forget(storage._cdata, held)
            self.note(storage)
            if held.stays:
                self.keep(storage)

    def restore(self) -> None:
        """Has all there is here again, at the end."""
        for held in list(self._held.values()):
            storage = held.storage()
            if held.is_away and storage is not None:
                self._bring(held, storage)

    def close(self) -> None:
        """Gives the disk space back, when nobody moves anything."""
        with self._lock:
            self.file.close()

    def counted(self) -> Figures:
        """The figures up to now."""
        found, file = self.figures, self.file
        found.written, found.read, found.disk = file.written, file.read, file.num_bytes
        return found

    def _settle(self, held: Held) -> None:
        offers, held.offers = held.offers, []
        for reference, settle in offers:
            offer = reference()
            if offer is not None:
                settle(offer)

    def _bring(self, held: Held, storage: torch.UntypedStorage) -> None:
        self._make_room(held.num_bytes)
        storage.resize_(held.num_bytes)
        try:
            self.file.get(storage.data_ptr(), held.num_bytes, held.place)
        except BaseException:
            storage.resize_(0)
            raise
        held.is_away = False
        self._add(held.num_bytes)

    def _add(self, num_bytes: int) -> None:
        self.here += num_bytes
        self.figures.peak = max(self.figures.peak, self.here)
        self.figures.largest = max(self.figures.largest, num_bytes)
        if self.limit is not None and self.here > self.limit:
            self.over = self.over or OverMemory(self.here, self.limit)
            raise self.over

    def _make_room(self, num_bytes: int) -> None:
        """Evicts until so many bytes more are within the budget, or nothing is left to evict."""
        while self.here + num_bytes > self.budget:
            if self._queue is None:
                self._queue = self._by_next_use()
            if not self._queue:
                return
            held = self._queue.pop()
            storage = held.storage()
            if storage is not None and not held.is_away and held.turn != self.turn:
                self._evict(held, storage)

    def _by_next_use(self) -> list[Held]:
        """What may go, the last of it first."""

        def order(held: Held) -> tuple[int, int, int]:
            last_turn = self._last_turns[held.rank]
            if held.own_turn < last_turn:
                return 0, held.own_turn, 0
            until_turn = (held.rank - self.rank) % self.num_ranks
            return 1 + (held.born == last_turn), -until_turn, held.born

        able = [
            held
            for held in self._held.values()
            if not (held.is_away or held.stays or held.turn == self.turn)
        ]
        return sorted(able, key=order, reverse=True)

    def _evict(self, held: Held, storage: torch.UntypedStorage) -> None:
        if not storage.resizable() or storage.is_shared():  # NumPy or a process sees it by now
            held.stays = True
            return
        if not held.is_written:
            if held.place < 0:
                held.place = self.file.take(held.num_bytes)
            self.file.write(storage.data_ptr(), held.num_bytes, held.place)
            held.is_written = True
        storage.resize_(0)
        held.is_away = True
        self.here -= held.num_bytes
        self.figures.evictions += 1

    def _forgetting(self, key: int) -> Callable[[object], None]:
        this = weakref.ref(self)

        def forget(reference: object) -> None:
            evictions = this()
            held = None if evictions is None else evictions._held.get(key)
            if evictions is not None and held is not None and held.storage is reference:
                with evictions._lock:
                    evictions._forget(key, held)

        return forget

    def _forget(self, key: int, held: Held) -> None:
        del self._held[key]
        if not held.is_away:
            self.here -= held.num_bytes
        if held.place >= 0:
            self.file.give_back(held.place, held.num_bytes)
        held.is_away, held.place = True, -1  # it may be in the queue
