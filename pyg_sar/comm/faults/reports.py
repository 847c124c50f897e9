"""What ranks tell each other of a failure, through the store that they met by.

A rank that has ended says why. The others say what they are waiting for, if they are asked: so a
rank that is silent is told from one that waits in vain itself. It costs nothing as long as all goes
well. The store may be gone or silent too (a rank may have held it), so nobody waits for it without
bound.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from pyg_sar.comm.faults.timeouts import PATIENCE

Value = TypeVar('Value')


class Cause(NamedTuple):
    """Why a rank has ended, or what one that is alive is waiting for.

    Attributes:
        peer: The rank that it lost or waits for, or None.
        failure: What it failed by itself with, or None.
        silent: Whether it lost that rank at a timeout; else the connection was closed.
        alive: Whether it has not ended.
        doing: Of one that is alive, the operation that it is waiting in; empty outside of all.
    """

    peer: int | None
    failure: str | None
    silent: bool = False
    alive: bool = False
    doing: str = ''


class Reports:
    """The reports of all ranks of a group.

    Args:
        store: Where they are.
        name: What tells this group's from others'.
        rank: This rank.
        world_size: Number of ranks.
    """

    def __init__(self, store: Any, name: str, rank: int, world_size: int) -> None:
        self.store, self.name, self.rank = store, name, rank
        self.others = [r for r in range(world_size) if r != rank]

    def write(self, cause: Cause | None, *, asks: bool = False, seconds: float = 1) -> None:
        """Says why this rank ends; None takes that back.

        Args:
            cause: Why.
            asks: Whether those who are alive shall say what they are waiting for.
            seconds: How long the store may take.
        """
        text = '' if cause is None else json.dumps(cause)

        def write() -> None:
            self.store.set(f'{self.name}/ended/{self.rank}', text)
            if asks:
                self.store.set(f'{self.name}/asked', '')

        bounded(write, seconds)

    def answer(self, state: Cause) -> None:
        """Says what this rank is doing, if another one has asked; raises what the store raises."""
        if self.store.check([f'{self.name}/asked']):
            self.store.set(f'{self.name}/alive/{self.rank}', json.dumps(state))

    def all_raised(self, at: str, seconds: float) -> bool:
        """Whether all ranks say within some time that they have come to the same end.

        Args:
            at: The point of the program where it was.
            seconds: How long the others are given.
        """
        keys = [f'{self.name}/raised/{at}/{rank}' for rank in self.others]

        def ask() -> bool:
            self.store.set(f'{self.name}/raised/{at}/{self.rank}', '')
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if self.store.check(keys):
                    return True
                time.sleep(0.01)
            return False

        return bool(bounded(ask, seconds + PATIENCE))

    def first_cause(self, own: Cause, seconds: float) -> Cause:
        """Follows who lost whom or waits for whom, from the rank that this one has lost.

        This rank has reported and asked already, and its connections are closed.

        Args:
            own: What this rank knows; its `peer` is None if the lost rank is not known.
            seconds: How long the others may take to answer; a second longer where two have not,
                as it is not known then which is the lost one.

        Returns:
            The rank that was lost first, what it failed with, or how it was lost.
        """
        soon = time.monotonic() + seconds
        end = soon + 2 * PATIENCE
        found = bounded(lambda: self._follow(own, soon, end), seconds + 2 * PATIENCE + 0.1)
        return own if found is None else found

    def _follow(self, own: Cause, soon: float, end: float) -> Cause:
        found, seen = own, {self.rank}
        while found.peer is not None:
            seen.add(found.peer)
            said = self._awaited(found, soon)
            if said is None:
                return self._with_way(found)
            if said.failure is not None:
                return Cause(found.peer, said.failure)
            is_last = said.alive and (not said.doing or said.peer in seen)
            if is_last:  # it has not come to the operation that is waited for
                return Cause(found.peer, None, found.silent, True, said.doing)
            if said.peer in seen:  # two that lost each other
                return self._with_way(self._most_lost(soon) or own)
            found = said._replace(alive=False, doing='')
        return self._of_all(own, soon, end) or own

    def _awaited(self, lost: Cause, end: float) -> Cause | None:
        """What a lost rank says, or None if it says nothing."""
        assert lost.peer is not None
        while True:
            # One whose connection is closed while it lives is cut off, whatever it waits for.
            said = self._read(lost.peer, alive=lost.silent)
            if said is not None or time.monotonic() > end:
                return said
            time.sleep(0.01)

    def _of_all(self, own: Cause, soon: float, end: float) -> Cause | None:
        """The cause, where it is not known which rank was lost."""
        said = self._said_by_all(soon, end)
        for rank, cause in said.items():
            if cause.failure is not None:
                return Cause(rank, cause.failure)
        named = {c.peer for c in said.values() if c.peer is not None}
        missing = {rank for rank in self.others if rank not in said}
        idle = {rank for rank, cause in said.items() if cause.alive and not cause.doing}
        suspects = (named & missing) or missing or (named & idle) or idle
        if len(suspects) != 1:
            return None
        silent = own.silent or any(c.silent and not c.alive for c in said.values())
        return Cause(suspects.pop(), None, silent, silent and not missing)

    def _most_lost(self, soon: float) -> Cause | None:
        """The rank that most of the others have lost."""
        said = self._said_by_all(soon, soon)
        votes = Counter(c.peer for c in said.values() if c.peer is not None and not c.alive)
        first = votes.most_common(2)
        if not first or first[0][0] == self.rank or len({n for _, n in first}) < len(first):
            return None
        return Cause(first[0][0], None)

    def _said_by_all(self, soon: float, end: float) -> dict[int, Cause]:
        """What the others say, once all have said something or one has failed.

        After `soon` without what one of them may have said still, after `end` whatever is missing.
        """
        while True:
            said = {rank: self._read(rank, alive=True) for rank in self.others}
            known = {rank: cause for rank, cause in said.items() if cause is not None}
            num_missing, now = len(said) - len(known), time.monotonic()
            is_enough = not num_missing or any(c.failure for c in known.values())
            if is_enough or now > end or (now > soon and num_missing == 1):
                return known
            time.sleep(0.01)

    def _with_way(self, found: Cause) -> Cause:
        """A rank that anyone lost at a timeout was silent, however others lost it then."""
        said = [self._read(rank, alive=False) for rank in self.others]
        silent = any(c is not None and c.peer == found.peer and c.silent for c in said)
        return found._replace(silent=found.silent or silent)

    def _read(self, rank: int, *, alive: bool) -> Cause | None:
        for kind in ('ended', 'alive') if alive else ('ended',):
            key = f'{self.name}/{kind}/{rank}'
            text = self.store.get(key) if self.store.check([key]) else b''
            if text:
                return Cause(*json.loads(text))
        return None


def bounded(fn: Callable[[], Value], seconds: float = 1) -> Value | None:
    """What `fn` returns, or None if it fails or takes longer."""
    found: list[Value] = []

    def run() -> None:
        try:
            found.append(fn())
        except Exception:  # the store is gone: nothing is known
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
