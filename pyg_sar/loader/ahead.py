"""Batches made in a thread, ahead of the program.

Ranks sample in rounds that all of them take part in. So the thread has a connection of its own (a
lane), and its collectives never meet those of the program. A rank whose program has left the loop
goes on taking part, with no seeds, until no rank wants batches any more: ranks count who does at
the beginning of every round. So programs may leave their loops at different batches; the next
iteration begins when all have left.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import in_call
from pyg_sar.comm.ranks import chosen, current, left_by

_PATIENCE = 2.0  # seconds in which other ranks may leave their loops when this program ends

Make = Callable[[Callable[[], bool]], Iterator[Any]]
"""Makes batches as long as its argument says that they are wanted."""


class Ahead:
    """Batches of a thread, at most `depth` ahead; with 0 there is no thread.

    `lane` is the connection of the thread. Messages call the loader by `name`.
    """

    def __init__(self, make: Make, depth: int, lane: Comm | None, name: str) -> None:
        self._depth, self._name, self._ready = depth, name, deque[Any]()
        self._changed = threading.Condition()
        self._is_wanted, self._is_done = True, False
        self._error: BaseException | None = None
        self._here = None if depth else make(lambda: True)
        self._thread = threading.Thread(
            target=self._run, args=(make, lane, name), name='pyg_sar batches', daemon=True
        )
        if depth:
            _running.add(self)
            _threads.add(self._thread)
            self._thread.start()

    def _run(self, make: Make, lane: Comm | None, name: str) -> None:
        with chosen.set(lane), in_call(name):
            try:
                for batch in make(lambda: self._is_wanted):
                    with self._changed:
                        self._changed.wait_for(self._has_room)
                        self._ready.append(batch)
                        self._changed.notify_all()
                    del batch
            except BaseException as error:
                if lane is not None:
                    lane.fail(error)
                self._error = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return not self._is_wanted or len(self._ready) < self._depth

    def next(self) -> Any:
        """The next batch; raises StopIteration after the last."""
        if self._here is not None:
            try:
                with in_call(self._name), torch.device('cpu'):  # not the program's default
                    return next(self._here)
            except Exception as error:
                if not isinstance(error, StopIteration):
                    left_by(error)
                raise
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_done)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
        if self._error is not None:
            current().fail(self._error)
            raise self._error
        raise StopIteration

    def leave(self) -> None:
        """No more batches are wanted."""
        if self._here is not None:
            self._here = iter(())
        with self._changed:
            self._is_wanted = False
            self._ready.clear()
            self._changed.notify_all()

    def join(self, seconds: float | None = None) -> None:
        """Waits until all ranks have left, as this one has."""
        if self._here is None:
            self._thread.join(seconds)


_running: WeakSet[Ahead] = WeakSet()
_threads: WeakSet[threading.Thread] = WeakSet()  # one outlives its Ahead while it drops tensors


def _leave_all() -> None:
    """A thread that outlives the interpreter keeps connections open.

    One that drops a tensor then ends the process by an abort.
    """
    for ahead in tuple(_running):
        ahead.leave()
    for thread in tuple(_threads):
        thread.join(_PATIENCE)


atexit.register(_leave_all)
