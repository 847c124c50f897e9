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
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakMethod

from pyg_sar.comm.errors import layer_and_phase

INTERVAL = 0.05  # seconds between two looks


class _Transfer(NamedTuple):
    work: Any
    end: float  # when it counts as lost
    layer: tuple[str, str]  # and phase
    operation: str


class TransferWatch:
    """The transfers of a comm's devices, and from the first one on a thread that looks.

    `tell` is called once, with the error and the operation of a transfer that fails or takes longer
    than `seconds`. It is a method, whose object is not kept alive.
    """

    def __init__(self, tell: Callable[[Exception, str], None], seconds: float) -> None:
        self._tell, self._seconds = WeakMethod(tell), seconds
        self._under_way: deque[_Transfer] = deque()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, work: Any, operation: str) -> None:
        """Watches a transfer that has just begun, until it ends."""
        end = time.monotonic() + self._seconds
        self._under_way.append(_Transfer(work, end, layer_and_phase.value, operation))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stops watching."""
        self._is_closed.set()

    def _look(self) -> None:
        while not self._is_closed.wait(INTERVAL) and self._tell() is not None:
            lost, words = self._lost()
            tell = self._tell()
            if lost is not None and tell is not None and not self._is_closed.is_set():
                with layer_and_phase.set(lost.layer):
                    tell(RuntimeError(words), lost.operation)
                return

    def _lost(self) -> tuple[_Transfer | None, str]:
        """The first transfer that has failed or is late, and how; drops those that ended."""
        while self._under_way and self._under_way[0].work.is_completed():
            transfer = self._under_way.popleft()
            if _has_failed(transfer.work):
                return transfer, 'the transfer between the devices failed'
        if self._under_way and time.monotonic() > self._under_way[0].end:
            words = f'timed out after {self._seconds:.1f} s on the device'
            return self._under_way.popleft(), words
        return None, ''


def _has_failed(work: Any) -> bool:
    """Whether one that counts as completed did not succeed: a lost rank, a wrong size.

    NCCL's backend does not tell (``get_error()``), and ``exception()`` warns that it is deprecated.
    """
    with suppress(RuntimeError):  # a backend that cannot tell
        if not hasattr(work, 'get_future_result'):  # torch 2.5
            return work.exception() is not None
        result = work.get_future_result()
        return bool(result.done() and result.value())
    return False
