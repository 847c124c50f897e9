"""The connections of the exchanges, and how they end when a rank fails.

A rank that fails ends its own connections: the others' operations then fail at once instead of
waiting for what will never come, and they learn from the reports whose fault it was.
"""

from __future__ import annotations

import threading
import traceback
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from pyg_sar.comm.errors import ExchangeError, place
from pyg_sar.comm.plain import gather_plain
from pyg_sar.comm.reports import Cause, Reports

GRACE = 2.0  # seconds in which all ranks may raise alike before the one that raised ends the group


class Connection:
    """The exchange group of a default group, and its state.

    Attributes:
        timeout: How long a silent rank is waited for; None for what the default group has.
        error: Why it has ended, or None.
        debug: Whether the ranks compare what they do before every operation.
        travelling: Transfers that are under way.
    """

    def __init__(self, number: int, timeout: timedelta | None) -> None:
        self.number, self.timeout = number, timeout
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.error: ExchangeError | None = None
        self.debug = False
        self.travelling: dict[int, Any] = {}
        self.num_operations = self.num_open = self.num_raised = 0
        self._verdict: threading.Thread | None = None
        self.group: dist.ProcessGroup | None = None
        default = dist.group.WORLD
        if torch.device('cpu') in getattr(default, '_device_types', ()):
            # Its ranks are connected: one that has ended is seen here. In new_group it is not.
            with Guard(self, 'connecting the ranks', None):
                dist.barrier()
        with Guard(self, 'connecting the ranks', None):
            self.group = dist.new_group(timeout=timeout or _timeout_of(default))

    def reports(self) -> Reports | None:
        """What the ranks tell of failures; None where there is no store."""
        try:
            store = dist.distributed_c10d._get_default_store()
        except (AttributeError, ValueError):
            return None
        return Reports(store, f'pyg_sar/{self.number}', self.rank, self.world_size)

    def check(self, operation: str) -> None:
        """Raises if the group has ended; waits where that is not decided yet."""
        if self._verdict is not None:
            self._verdict.join()
            self._verdict = None
        if self.error is not None:
            first = self.error
            reason = f'exchanges ended before, when {first}'
            raise ExchangeError(self.rank, first.peer, operation, place(), reason)

    def compare(self, operation: str) -> None:
        """Raises on all ranks if their next operations are not the same one."""
        own = (operation, place(), self.num_operations)
        with Guard(self, f'comparing programs before {operation}', None):
            found = gather_plain(own, self.group)
        for rank, (what, where, _) in enumerate(found):
            if (what, where) != found[0][:2]:
                first, other = (
                    f'{a} in {b or "no layer"}' for a, b in (found[0][:2], (what, where))
                )
                raise ValueError(
                    f'expected the same program on all ranks: operation {own[2]} is {first} on '
                    f'rank 0 (got {other} on rank {rank})'
                )

    def lost(self, error: Exception, operation: str, peer: int | None) -> ExchangeError:
        """Ends the group after an operation failed, and gives the error that says so."""
        reports, cause = self.reports(), Cause(peer, None)
        # First, so that those who wait for this rank wake up and report as well.
        self.end(ExchangeError(self.rank, peer, operation, place(), _reason(cause, error)), cause)
        if reports is not None:
            cause = reports.first_cause(peer)
            reports.write(Cause(cause.peer, None))
        self.error = ExchangeError(self.rank, cause.peer, operation, place(), _reason(cause, error))
        return self.error

    def left_by(self, error: BaseException) -> None:
        """Ends the group after an exception left this rank's program, unless all ranks raised it.

        With transfers under way at once; else once the others had time to raise as well.
        """
        if isinstance(error, ExchangeError) or '_pyg_sar_left' in vars(error):
            return
        vars(error)['_pyg_sar_left'] = self.number  # layers inside others see it, too
        if self._verdict is not None:
            self._verdict.join()
        if self.error is not None:
            return
        text = f'{type(error).__name__}: {error}'
        if len(text) > 300:
            text = text[:300] + ' ...'
        where = f' in {place()}' if place() else ''
        cause = Cause(None, text + where)
        found = ExchangeError(self.rank, self.rank, 'an exception', place(), text)
        if self.travelling or self.num_open:
            self.end(found, cause)
            return
        reports = self.reports()
        if reports is None:
            return
        reports.write(cause)  # now: this process may be about to end
        self.num_raised += 1
        at = f'{self.num_operations}/{self.num_raised}'

        def judge() -> None:
            if reports.all_raised(at, GRACE):
                reports.write(None)
            else:
                self.end(found, cause)

        self._verdict = threading.Thread(target=judge, daemon=True)
        self._verdict.start()

    def end(self, error: ExchangeError, cause: Cause) -> None:
        """Closes the connections to all ranks, after saying why."""
        self.error = error
        reports = self.reports()
        if reports is not None:
            reports.write(cause)
        for swap in self.travelling.values():
            swap.works = []  # they keep connections open
        self.travelling.clear()
        group, self.group = self.group, None
        if group is None:
            return
        try:
            if dist.get_backend(group) != 'gloo':
                group.abort()
            dist.destroy_process_group(group)
        except (RuntimeError, ValueError, AssertionError):
            return  # with the default group it has gone already


class Guard:
    """An operation with other ranks: its errors come out as :class:`ExchangeError`."""

    __slots__ = ('connection', 'operation', 'peer')

    def __init__(self, connection: Connection | None, operation: str, peer: int | None) -> None:
        self.connection, self.operation, self.peer = connection, operation, peer

    def __enter__(self) -> None:
        if self.connection is not None:
            self.connection.check(self.operation)
            self.connection.num_open += 1

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.connection is None:
            return
        if error is None:
            self.connection.num_open -= 1
        elif isinstance(error, RuntimeError) and not isinstance(error, ExchangeError):
            # Frames that hold the group would keep its connections.
            traceback.clear_frames(trace)
            found = self.connection.lost(error, self.operation, self.peer)
            raise found from error.with_traceback(None)
        else:  # interrupted
            self.connection.left_by(error)


def _timeout_of(group: dist.ProcessGroup | None) -> timedelta | None:
    """The timeout of a group, which torch does not hand on to new ones; None if unknown."""
    try:
        backend = group._get_backend(torch.device('cpu'))  # type: ignore[union-attr]
        found = backend.options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, timedelta) else None


def _reason(cause: Cause, error: Exception) -> str:
    text = str(error).split('. This is typically')[0]
    who = 'a rank that is not known' if cause.peer is None else f'rank {cause.peer}'
    if cause.failure is not None:
        return f'{who} failed with {cause.failure}'
    if 'imed out' in text or 'timeout' in text:
        return f'{who} was silent for too long ({text})'
    return f'{who} has ended or is cut off ({text})'
