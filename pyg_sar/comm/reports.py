"""What ranks tell each other of a failure, through the store that they met by.

Only ranks that have failed read or write: it costs nothing as long as all goes well. The store may
be gone or silent too (a rank may have held it), so nobody waits for it without bound.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

PATIENCE = 0.5  # seconds in which other ranks may tell of a failure that this one sees, too

Value = TypeVar('Value')


class Cause(NamedTuple):
    """Why a rank has ended.

    Attributes:
        peer: The rank that it lost, or None.
        failure: What it failed by itself with, or None.
    """

    peer: int | None
    failure: str | None


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

    def write(self, cause: Cause | None) -> None:
        """Says why this rank ends; None takes that back."""
        text = '' if cause is None else json.dumps(cause)
        bounded(lambda: self.store.set(f'{self.name}/ended/{self.rank}', text))

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

    def first_cause(self, lost: int | None) -> Cause:
        """Follows who lost whom, from the rank that this one has lost to the first.

        This rank has reported already, and its connections are closed.

        Args:
            lost: That rank; None if it is not known.
        """
        found = bounded(lambda: self._follow(lost), 2 * PATIENCE + 1)
        return Cause(lost, None) if found is None else found

    def _follow(self, lost: int | None) -> Cause:
        end = time.monotonic() + PATIENCE
        last, seen = lost, {self.rank}
        while lost is not None and lost not in seen:
            seen.add(lost)
            last, cause = lost, self._read(lost)
            while cause is None and time.monotonic() < end:
                time.sleep(0.01)
                cause = self._read(lost)
            if cause is None or cause.failure is not None:
                return Cause(lost, None if cause is None else cause.failure)
            lost = cause.peer
        if lost is not None:  # two that lost each other
            return Cause(last, None)
        return self._of_all(end) or Cause(last, None)

    def _of_all(self, end: float) -> Cause | None:
        """The cause, where it is not known which rank was lost."""
        while True:
            causes = {rank: self._read(rank) for rank in self.others}
            for rank, cause in causes.items():
                if cause is not None and cause.failure is not None:
                    return Cause(rank, cause.failure)
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        lost = {c.peer for c in causes.values() if c is not None and c.peer is not None}
        silent = {rank for rank, cause in causes.items() if cause is None}
        suspects = (lost & silent) or silent
        return Cause(suspects.pop(), None) if len(suspects) == 1 else None

    def _read(self, rank: int) -> Cause | None:
        key = f'{self.name}/ended/{rank}'
        text = self.store.get(key) if self.store.check([key]) else b''
        return Cause(*json.loads(text)) if text else None


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
