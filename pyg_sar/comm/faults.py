"""How the ranks find out which of them was lost first, and that a device waits for a lost one.

A rank says why it ends before it closes its connections, in the store by which all ranks met. So
whoever sees them closed finds the reason in the store, and follows who lost whom. The store may be
gone or silent too (a rank may have held it), so nobody waits for it without bound.

A rank that waits says nothing until its own timeout. So of a chain of waiting ranks the one that
comes to its timeout first names the nearest link.

NCCL's ``wait()`` orders streams and returns; of a lost rank it tells nothing. The program would
stand still where it next waits for its device, in C and for ever, or torch's watchdog would end the
process. So a thread asks transfers whether they are done. One that is not in time ends the
connection. That aborts the group, which lets the program go on to where it raises.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from weakref import WeakMethod

from pyg_sar.comm.errors import layer_and_phase

Value = TypeVar('Value')

PATIENCE = 0.5
"""Seconds in which other ranks may tell of a failure that this one sees, too."""


def for_operations(limit: timedelta | None) -> timedelta | None:
    """How long an operation may take, so that with the reports all ends within the timeout."""
    return None if limit is None else limit - timedelta(seconds=for_reports(limit.total_seconds()))


def for_reports(seconds: float) -> float:
    """The seconds of a timeout in which ranks that have come to it read the others' reports."""
    return min(max(seconds / 5, PATIENCE), seconds / 2, 5.0)


class RootCause(NamedTuple):
    """Why a rank has ended."""

    peer: int | None  # the rank that it lost
    failure: str | None = None  # its own exception in words
    silent: bool = False  # whether it lost that rank at a timeout; else the connection was closed
    doing: str = ''  # the operation at which it ended, in words


class Reports:
    """The reports of all ranks, in `store`, under `name`."""

    def __init__(self, store: Any, name: str, rank: int, world_size: int) -> None:
        self.store, self.name, self.rank = store, name, rank
        self.others = [r for r in range(world_size) if r != rank]

    def write(self, cause: RootCause | None, *, seconds: float = 1) -> None:
        """Says why this rank ends; None takes that back. The store may take some seconds."""
        text = '' if cause is None else json.dumps(cause)
        _bounded(lambda: self.store.set(f'{self.name}/ended/{self.rank}', text), seconds)

    def all_raised(self, at: str, seconds: float) -> bool:
        """Whether all ranks raise at point `at` of the program, within so many seconds."""
        keys = [f'{self.name}/raised/{at}/{rank}' for rank in self.others]

        def ask() -> bool:
            self.store.set(f'{self.name}/raised/{at}/{self.rank}', '')
            return _until(lambda: bool(self.store.check(keys)), seconds)

        return bool(_bounded(ask, seconds + PATIENCE))

    def root_cause(self, own: RootCause, seconds: float) -> RootCause:
        """The rank that was lost first, with its exception, how it was lost, or its operation.

        `own` is what this rank has reported; its `peer` is None if it is not known. The others have
        `seconds` to report.
        """
        said = dict[int, RootCause]()

        def is_known() -> bool:
            for rank in self.others:
                key = f'{self.name}/ended/{rank}'
                text = self.store.get(key) if rank not in said and self.store.check([key]) else b''
                if text:
                    said[rank] = RootCause(*json.loads(text))
            # Of ranks that lose each other in a collective, one that says nothing is the lost one.
            is_enough = len(self.others) - len(said) <= (own.peer is None)
            return is_enough or any(c.failure for c in said.values())

        _bounded(lambda: _until(is_known, seconds), seconds + PATIENCE)
        return first_of(self.rank, own._replace(doing=''), dict(said), self.others)


def first_of(rank: int, own: RootCause, said: dict[int, RootCause], others: list[int]) -> RootCause:
    """The root cause, from the reports that a rank has read; see :meth:`Reports.root_cause`."""
    for other, cause in said.items():
        if cause.failure:
            return RootCause(other, cause.failure)
    link, seen = own, {rank}
    while link.peer in said:
        seen.add(link.peer)
        link = said[link.peer]
        if link.peer in seen and own.peer is not None:  # a circle: the nearest link
            nearest = said[own.peer]
            # Whichever came to its timeout first and closed its connections, both were silent.
            return own._replace(doing=nearest.doing, silent=own.silent or nearest.silent)
    if link.peer is not None:
        return RootCause(link.peer, None, link.silent)
    # Not known from the connections: the one that says nothing.
    named = {c.peer for c in said.values()} - {None, rank}
    missing = set(others) - said.keys()
    suspects = (named & missing) or missing or named
    is_silent = own.silent or any(c.silent for c in said.values())
    return RootCause(suspects.pop() if len(suspects) == 1 else own.peer, None, is_silent)


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes to hold in time; asks at least once."""
    end = time.monotonic() + seconds
    while not (result := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


def _bounded(fn: Callable[[], Value], seconds: float) -> Value | None:
    """The result of `fn`, or None if it fails or takes longer."""
    results: list[Value] = []

    def run() -> None:
        try:
            results.append(fn())
        except Exception:  # the store is gone: nothing is known
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


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
