"""What ranks that have ended tell the others, through the store that they met by.

A rank that raises, or has lost another one, says so before it closes its connections; the others
follow who lost whom. It costs nothing as long as all goes well. The store may be gone or silent too
(a rank may have held it), so nobody waits for it without bound.

A rank that waits says nothing until its own timeout. So where one waits for a second that waits for
a third, and comes to its timeout first, it names the second: the nearest link of the chain.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

Value = TypeVar('Value')

PATIENCE = 0.5
"""Seconds in which other ranks may tell of a failure that this one sees, too."""


class Cause(NamedTuple):
    """Why a rank has ended.

    Attributes:
        peer: The rank that it lost, or None.
        failure: What it failed by itself with, or None.
        silent: Whether it lost that rank at a timeout; else the connection was closed.
        doing: What it did, in words.
    """

    peer: int | None
    failure: str | None = None
    silent: bool = False
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

    def write(self, cause: Cause | None, *, seconds: float = 1) -> None:
        """Says why this rank ends; None takes that back. The store may take some seconds."""
        text = '' if cause is None else json.dumps(cause)
        bounded(lambda: self.store.set(f'{self.name}/ended/{self.rank}', text), seconds)

    def all_raised(self, at: str, seconds: float) -> bool:
        """Whether all ranks come to the same end, at point `at` of the program, within seconds."""
        keys = [f'{self.name}/raised/{at}/{rank}' for rank in self.others]

        def ask() -> bool:
            self.store.set(f'{self.name}/raised/{at}/{self.rank}', '')
            return _until(lambda: self.store.check(keys) or None, seconds) is not None

        return bool(bounded(ask, seconds + PATIENCE))

    def first_cause(self, own: Cause, seconds: float) -> Cause:
        """Follows who lost whom, from the rank that this one has lost.

        This rank has reported already, and its connections are closed.

        Args:
            own: What this rank knows; its `peer` is None if the lost rank is not known.
            seconds: How long the others may take to report.

        Returns:
            The rank that was lost first, and what it failed with, how it was lost, or what it did
            while this rank waited for it.
        """
        own = own._replace(doing='')
        follow = self._of_one if own.peer is not None else self._of_all
        return bounded(lambda: follow(own, seconds), seconds + 2 * PATIENCE + 0.1) or own

    def _of_one(self, own: Cause, seconds: float) -> Cause:
        end = time.monotonic() + seconds
        found, seen, doing = own, {self.rank}, None
        while found.peer is not None:
            seen.add(found.peer)
            said = _until(partial(self._read, found.peer), end - time.monotonic())
            if said is None:
                return found._replace(doing='')
            if said.failure is not None:
                return Cause(found.peer, said.failure)
            doing = said.doing if doing is None else doing
            if said.peer in seen:  # a circle: the nearest link, and what that waits at
                return own._replace(doing=doing)
            found = said
        return self._of_all(own, end - time.monotonic())

    def _of_all(self, own: Cause, seconds: float) -> Cause:
        """The cause, where it is not known which rank was lost: the one that says nothing."""
        said: dict[int, Cause] = {}

        def is_known(*, num_missing: int) -> bool | None:
            for rank in self.others:
                cause = said.get(rank) or self._read(rank)
                if cause is not None:
                    said[rank] = cause
            is_enough = len(said) + num_missing >= len(self.others)
            return is_enough or any(c.failure for c in said.values()) or None

        # A second longer where two say nothing, as it is not known then which is the lost one.
        if not _until(lambda: is_known(num_missing=0), seconds):
            _until(lambda: is_known(num_missing=1), 2 * PATIENCE)
        failed = [Cause(rank, cause.failure) for rank, cause in said.items() if cause.failure]
        if failed:
            return failed[0]
        named = {c.peer for c in said.values()} - {None, self.rank}
        missing = set(self.others) - said.keys()
        suspects = (named & missing) or missing or named
        is_silent = own.silent or any(c.silent for c in said.values())
        return Cause(suspects.pop(), None, is_silent) if len(suspects) == 1 else own

    def _read(self, rank: int) -> Cause | None:
        key = f'{self.name}/ended/{rank}'
        text = self.store.get(key) if self.store.check([key]) else b''
        return Cause(*json.loads(text)) if text else None


def _until(ask: Callable[[], Value | None], seconds: float) -> Value | None:
    """What `ask` gives once that is not None; asks at least once."""
    end = time.monotonic() + seconds
    while (found := ask()) is None and time.monotonic() < end:
        time.sleep(0.01)
    return found


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
