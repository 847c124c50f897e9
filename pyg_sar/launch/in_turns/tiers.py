"""Memory of one kind, of the host or of a GPU: its budget, and which storages leave it.

A storage is emptied (``resize_(0)``) and filled again in the same object, so tensors, views and
what autograd has saved stay valid. A storage that a turn has touched stays until the turn ends: no
operation, loop or thread of the rank that runs can lose what it works on. Where the budget is
exceeded, storages of other ranks go, in this order:

1. not touched by its rank in that rank's last turn (deep in the autograd graph), the least recently
   touched first;
2. touched in that turn, made in an earlier one;
3. made in that turn: the rank's next turn works on it;
4. offered: other ranks have still to read rows of it.

Within 2 and 3 the rank that waits longest for its next turn loses its storages first. Ranks take
turns in a circle, so the least recently used would be the worst choice. Belady's choice, which
knows the whole epoch, moves hardly less (docs/speed.md).

A storage is not written again before it has changed; one that dies is never written.
"""

from __future__ import annotations

import os
import sys
import weakref
from bisect import insort
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class Away(Protocol):
    """Where a storage's bytes wait."""

    @property
    def has_it(self) -> bool:
        """Whether it has the bytes of the storage as they are now."""

    def write(self, storage: torch.UntypedStorage) -> None:
        """Copies the bytes of a storage to there."""

    def read(self, storage: torch.UntypedStorage) -> None:
        """Copies them back, and may keep them."""

    def outdate(self) -> None:
        """Notes that the storage is about to change."""

    def announce(self, num_bytes: int, start: int) -> None:
        """Says that these bytes are read next."""

    def read_part(self, address: int, num_bytes: int, start: int) -> None:
        """Copies bytes, from `start` on, to an address of the host."""

    def in_host_memory(self) -> torch.UntypedStorage | None:
        """The memory of the host that holds them; None if they are on a disk."""

    def free(self) -> None:
        """Gives their place up."""


@dataclass(eq=False, slots=True)
class Held:
    """A storage that may be evicted."""

    storage: weakref.ref[torch.UntypedStorage]
    tier: Tier
    num_bytes: int
    taken: int  # bytes of memory, while it is here
    rank: int  # whose it is
    born: int  # the turn in which that rank made it
    own_turn: int  # the last turn in which that rank touched it
    turn: int  # the last turn in which any rank did
    away: Away | None = None
    is_away: bool = False
    stays: bool = False  # others may read and write it at any time
    owner: Held | None = None  # whose bytes it holds, if not its own
    # Offers that read it, and how to have one computed before it changes.
    offers: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = field(default_factory=list)

    @property
    def is_spare(self) -> bool:
        """Whether its owner has the same bytes."""
        return self.owner is not None and not self.owner.is_away

    @property
    def is_offered(self) -> bool:
        """Whether others have still to read rows of it."""
        offers = [reference() for reference, _ in self.offers]
        return any(offer is not None and offer.is_open for offer in offers)


def _num_references(storage: weakref.ref[torch.UntypedStorage]) -> int:
    return sys.getrefcount(storage())


_tensor = torch.empty(1)
_OF_TENSORS = _num_references(weakref.ref(_tensor.untyped_storage()))


def _is_used(storage: weakref.ref[torch.UntypedStorage]) -> bool:
    """Whether Python code holds the storage object, and not only tensors on it, or it has died.

    Such code may read it without an operation of torch.
    """
    return _num_references(storage) > _OF_TENSORS


class Clock:
    """The number of the turn, its rank, and whether that has touched a storage of its own."""

    def __init__(self, num_ranks: int) -> None:
        self.turn = self.rank = 0
        self.has_touched = False
        self._last_turns = [0] * num_ranks  # before this one, in which a rank has
        self._process = os.getpid()

    def is_forked(self) -> bool:
        """Whether this process is a fork of the one whose ranks take turns."""
        return os.getpid() != self._process

    def begin(self, rank: int) -> None:
        """The turn of a rank begins."""
        if self.has_touched:
            self._last_turns[self.rank] = self.turn
        self.turn += 1
        self.rank, self.has_touched = rank, False

    def last_needed(self, held: Held) -> tuple[int, int, int]:
        """A key to sort by: the storage that is needed last comes first."""
        last_turn = self._last_turns[held.rank]
        if held.is_offered:
            return 3, 0, 0
        if held.own_turn < last_turn:
            return 0, held.own_turn, 0
        until_turn = (held.rank - self.rank) % len(self._last_turns)
        return 1 + (held.born == last_turn), -until_turn, held.born


class Tier:
    """Storages in memory of one kind.

    Args:
        budget: Bytes that may be here between operations, if turns need no more.
        clock: Of all tiers.
        below: Gives a place where the bytes of a storage are to wait.

    Attributes:
        here: Bytes in memory.
        peak: The most bytes in memory so far.
        largest: Bytes of the largest storage.
        evictions: How often memory was taken away.
        held: Storages that may be evicted or are away.
    """

    def __init__(self, budget: int, clock: Clock, below: Callable[[Held], Away]) -> None:
        self.budget, self.clock, self.below = budget, clock, below
        self.here = self.peak = self.largest = self.evictions = 0
        self.held: dict[Held, None] = {}
        self._queue: list[Held] | None = []

    def begin(self) -> None:
        """Evicts storages of other ranks over the budget when a turn begins."""
        self._queue = None
        self.make_room(0)

    def leave(self, held: Held) -> None:
        """Lets a storage go that the turn does not need any more."""
        held.turn, self._queue = held.own_turn, None

    def add(self, held: Held) -> None:
        """Counts a storage that is here now."""
        self.held[held] = None
        self.here += held.taken
        self.peak = max(self.peak, self.here)
        self.largest = max(self.largest, held.num_bytes)
        if self._queue is not None and held.turn != self.clock.turn:
            insort(self._queue, held, key=self._order)

    def fill(
        self,
        held: Held,
        storage: torch.UntypedStorage,
        read: Callable[[torch.UntypedStorage], None],
    ) -> None:
        """Gives an empty storage memory, and fills it by `read`."""
        self.make_room(held.taken)
        with _default_stream(storage):
            storage.resize_(held.num_bytes)
            try:
                read(storage)
            except BaseException:
                storage.resize_(0)
                raise
        held.is_away = False
        self.add(held)

    def bring(self, held: Held, storage: torch.UntypedStorage) -> None:
        """Brings a storage that is away back into memory."""
        assert held.away is not None
        self.fill(held, storage, held.away.read)

    def make_room(self, num_bytes: int) -> None:
        """Evicts until so many bytes more are within the budget, or nothing is left to evict.

        The size of a result is known only when it is there: so the largest storage has room, too.
        """
        while self.here + num_bytes + self.largest > self.budget:
            if self.clock.is_forked():  # it would write to places of the other process
                return
            if self._queue is None:
                able = [held for held in list(self.held) if self._may_go(held)]
                self._queue = sorted(able, key=self._order)
            if not self._queue:
                return
            held = self._queue.pop()
            if not self._may_go(held) or (held.owner is None and _is_used(held.storage)):
                continue
            storage = held.storage()
            if storage is not None:
                self._evict(held, storage)

    def empty(self, held: Held, storage: torch.UntypedStorage) -> None:
        """Takes the memory of a storage away."""
        storage.resize_(0)
        held.is_away = True
        self.here -= held.taken

    def spare(self, held: Held, storage: torch.UntypedStorage) -> None:
        """HasCache a storage that has become spare, as long as there is room."""
        if self.here > self.budget:
            self.empty(held, storage)
        elif self._queue is not None:
            self._queue.append(held)

    def forget(self, held: Held) -> None:
        """Forgets a storage that has died."""
        self.held.pop(held, None)
        if not held.is_away:
            self.here -= held.taken
        if held.away is not None:
            held.away.free()
        held.is_away, held.away = True, None  # it may be in the queue

    def _may_go(self, held: Held) -> bool:
        return not (held.is_away or held.stays or held.turn == self.clock.turn)

    def _order(self, held: Held) -> tuple[int, int, int]:
        if held.is_spare:
            return 1, 0, 0
        group, time, born = self.clock.last_needed(held)
        return -group, -time, -born

    def _evict(self, held: Held, storage: torch.UntypedStorage) -> None:
        # NumPy or a process may see it by now. Of a device's torch says always that it is shared.
        if not storage.resizable() or (storage.device.type == 'cpu' and storage.is_shared()):
            held.stays = True
            return
        if not (held.is_spare or (held.away is not None and held.away.has_it)):
            held.away = held.away or self.below(held)
            held.away.write(storage)
        self.empty(held, storage)
        self.evictions += 1


def _default_stream(storage: torch.UntypedStorage) -> AbstractContextManager[object]:
    """Memory of a device is that of the stream on which it was taken, which is always this one."""
    if storage.device.type == 'cpu':
        return nullcontext()
    return torch.cuda.stream(torch.cuda.default_stream(storage.device))
