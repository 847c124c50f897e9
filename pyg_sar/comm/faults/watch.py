"""Sees that transfers between devices end.

NCCL's ``wait()`` orders streams and returns; of a lost rank it tells nothing. The program would
stand still where it next waits for its device, in C and for ever, or torch's watchdog would end the
process. So a thread asks transfers whether they are done. One that is not in time ends the
connection. That aborts the group, which lets the program go on to where it raises.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from weakref import ref

from pyg_sar.comm.faults.errors import in_call, place_and_phase

INTERVAL = 0.05  # seconds between two looks


class Watched(Protocol):
    """A connection."""

    current: tuple[str, int | None]

    def lost_late(self, error: Exception, operation: str, peer: int | None) -> None:
        """To be told of the first transfer that fails."""


class _Transfer(NamedTuple):
    work: Any
    end: float  # when it counts as lost
    place: tuple[str, str]
    operation: str
    peer: int | None


class Watch:
    """The transfers of a connection's devices, and from the first one on a thread that looks.

    Args:
        connection: Told of a transfer that fails, once; not kept alive.
        seconds: How long one may take.
    """

    def __init__(self, connection: Watched, seconds: float) -> None:
        self._connection, self._seconds = ref(connection), seconds
        self._under_way: deque[_Transfer] = deque()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, work: Any) -> None:
        """Has a transfer seen to end that has just begun."""
        connection = self._connection()
        assert connection is not None
        end = time.monotonic() + self._seconds
        told = place_and_phase(), *connection.current
        self._under_way.append(_Transfer(work, end, *told))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Looks no more."""
        self._is_closed.set()

    def _look(self) -> None:
        while not self._is_closed.wait(INTERVAL) and self._connection() is not None:
            while self._under_way and self._under_way[0].work.is_completed():
                transfer = self._under_way.popleft()
                if _has_failed(transfer.work):
                    return self._tell(transfer, 'the transfer between the devices failed')
            if self._under_way and time.monotonic() > self._under_way[0].end:
                words = f'timed out after {self._seconds:.1f} s on the device'
                return self._tell(self._under_way.popleft(), words)

    def _tell(self, transfer: _Transfer, words: str) -> None:
        connection = self._connection()
        if connection is not None and not self._is_closed.is_set():
            with in_call(*transfer.place):
                connection.lost_late(RuntimeError(words), transfer.operation, transfer.peer)


def _has_failed(work: Any) -> bool:
    """Whether one that counts as completed did not succeed: its rank was lost, a message too long.

    NCCL's backend does not tell (``get_error()``), and ``exception()`` warns that it is deprecated.
    """
    with suppress(RuntimeError):  # a backend that cannot tell
        if not hasattr(work, 'get_future_result'):  # torch 2.5
            return work.exception() is not None
        result = work.get_future_result()
        return bool(result.done() and result.value())
    return False
