"""A thread that answers for its rank while that waits for others.

A rank that waits in an operation cannot say so itself. Without its answer another one that waits
for it, and comes to the timeout first, would take it for the silent one. The thread looks into the
store only where a rank has been waiting, or has been outside of all operations, for long: it costs
nothing as long as all goes well.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol
from weakref import ReferenceType, ref

from pyg_sar.comm.faults.reports import Cause, Reports

POLL = 0.1  # seconds
WAITING = 0.2  # seconds in an operation that are long


class Watched(Protocol):
    """What the thread asks of a connection."""

    seconds: float
    """The timeout."""

    @property
    def error(self) -> Exception | None:
        """Why it has ended, or None."""

    def state(self) -> tuple[float, Cause]:
        """What this rank is doing, and since when."""

    def reports(self) -> Reports | None:
        """What the ranks tell of failures."""


def watch(connection: Watched) -> None:
    """Answers for a connection as long as that exists and has not ended."""
    threading.Thread(
        target=_run, args=(ref(connection),), daemon=True, name='pyg_sar answers'
    ).start()


def _run(reference: ReferenceType[Watched]) -> None:
    while True:
        time.sleep(POLL)
        connection = reference()
        if connection is None or connection.error is not None:
            return
        try:
            _answer(connection)
        except Exception:  # the store is gone: nobody asks
            return
        del connection


def _answer(connection: Watched) -> None:
    since, state = connection.state()
    if time.monotonic() - since < (WAITING if state.doing else connection.seconds / 2):
        return
    reports = connection.reports()
    if reports is not None:
        reports.answer(state)
