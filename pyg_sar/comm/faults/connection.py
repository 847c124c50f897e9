"""The connections of the exchanges, and how they end when a rank fails.

A rank that fails closes its own connections. Operations of the others then fail at once instead of
waiting for a message that never comes, and the reports tell them which rank failed first. gloo's
``abort`` and ``shutdown`` close nothing: connections close when the last reference to the group
goes, so only this module holds one.

What all ranks raise at the same point within GRACE seconds, with nothing under way, leaves the
group as it was. As long as no rank fails, no message is sent for all this.
"""

from __future__ import annotations

import threading
import time
import traceback
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from pyg_sar.comm.faults.answering_thread import watch
from pyg_sar.comm.faults.errors import ExchangeError, place
from pyg_sar.comm.faults.program_check import Step, difference
from pyg_sar.comm.faults.reports import Cause, Reports
from pyg_sar.comm.faults.timeouts import (
    PATIENCE,
    for_operations,
    for_reports,
    is_timeout,
    timeout_of,
)
from pyg_sar.comm.json_values import gather_plain

GRACE = 2.0  # seconds in which all ranks may raise alike before the one that raised ends the group


class Connection:
    """The exchange group of a default group, and its state.

    Attributes:
        timeout: How long a silent rank is waited for; None for what the default group has.
        error: Why it has ended, or None.
        debug: Whether the ranks compare what they do before every operation.
        travelling: Transfers that are under way.
        doing: Since when the rank is in an operation, which, the rank it is done with, and the
            layer; the operation is empty outside of all.
        seconds: The timeout that is in force.
    """

    def __init__(
        self, number: int, timeout: timedelta | None, before: Connection | None = None
    ) -> None:
        self.number, self.timeout = number, timeout
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.error: ExchangeError | None = None
        self.debug = False
        self.travelling: dict[int, Any] = {}
        self.num_operations = self.num_open = self.num_raised = 0
        self._verdict: threading.Thread | None = None
        self._last_backward = -1
        self.group: dist.ProcessGroup | None = None
        self.doing: tuple[float, str, int | None, str] = time.monotonic(), '', None, ''
        default = dist.group.WORLD
        limit = timeout or timeout_of(default)
        self.seconds = limit.total_seconds() if limit is not None else float('inf')
        self._meet(default, before)
        with Guard(self, 'connecting the ranks', None):
            self.group = dist.new_group(timeout=for_operations(limit))
        watch(self)

    def _meet(self, default: Any, before: Connection | None) -> None:
        """Sees ranks that have ended, which new_group would wait for."""
        group = default if before is None or before.group is None else before.group
        if torch.device('cpu') not in getattr(group, '_device_types', ()):
            return
        with Guard(self, 'connecting the ranks', None):
            work = dist.barrier(group=group, async_op=True)
            limit = for_operations(timeout_of(group)) if group is default else None
            assert work is not None
            work.wait(limit) if limit is not None else work.wait()

    def notes(self, operation: str, peer: int | None) -> None:
        """That the rank comes to an operation; an empty one where it leaves."""
        self.doing = time.monotonic(), operation, peer, place() if operation else ''

    def state(self) -> tuple[float, Cause]:
        """What this rank is doing, and since when."""
        since, operation, peer, layer = self.doing
        where = f' in {layer}' if layer else ''
        return since, Cause(peer, None, True, True, operation + where)

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

    def compare(self, step: Step) -> None:
        """Raises on all ranks if their next operations are not the same one."""
        own = step._replace(layer=place())
        with Guard(self, f'comparing programs before {step.operation}', None):
            found = gather_plain(tuple(own), self.group)
        differs = difference([Step(*each) for each in found])
        if differs is not None:
            raise ValueError(
                'expected the same program on all ranks: '
                f'operation {self.num_operations} is {differs}'
            )

    def compare_the_end_of_backward(self) -> None:
        """Once in every backward: a rank that skips a layer in it comes to its end too early."""
        task = torch._C._current_graph_task_id()
        if task in (-1, self._last_backward):
            return
        self._last_backward = task
        torch.autograd.Variable._execution_engine.queue_callback(self._at_the_end_of_backward)

    def _at_the_end_of_backward(self) -> None:
        if self.error is None:
            self.compare(Step('the end of backward'))

    def lost(self, error: Exception, operation: str, peer: int | None) -> ExchangeError:
        """Ends the group after an operation failed, and gives the error that says so."""
        if self.error is not None:
            return ExchangeError(self.rank, self.error.peer, operation, place(), self.error.reason)
        reports, own = self.reports(), Cause(peer, None, is_timeout(error))
        seconds = for_reports(self.seconds) if own.silent else PATIENCE
        end = time.monotonic() + seconds
        # First, so that those who wait for this rank wake up and report as well.
        found = ExchangeError(self.rank, peer, operation, place(), _reason(own, own, error))
        self.end(found, own, seconds=seconds / 2 if own.silent else 1)
        cause = own
        if reports is not None:
            cause = reports.first_cause(own, max(end - time.monotonic(), 0.1))
            if peer is None:
                reports.write(Cause(cause.peer, None, cause.silent), seconds=0.2)
        reason = _reason(cause, own, error)
        self.error = ExchangeError(self.rank, cause.peer, operation, place(), reason)
        return self.error

    def left_by(self, error: BaseException) -> None:
        """Ends the group after an exception left this rank's program, unless all ranks raised it.

        With transfers under way at once; else once the others had time to raise as well.
        """
        # torch.utils.checkpoint ends what it computes again by an exception, on all ranks alike.
        is_stop = type(error).__name__ == '_StopRecomputationError'
        if is_stop or isinstance(error, ExchangeError) or '_pyg_sar_left' in vars(error):
            return
        vars(error)['_pyg_sar_left'] = self.number  # layers inside others see it, too
        if self._verdict is not None:
            self._verdict.join()
        if self.error is not None:
            return
        found, cause = self._failure(error)
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

    def ends_with(self, error: BaseException) -> None:
        """Ends the group at the end of a process that an exception ends."""
        if self.error is None and not isinstance(error, ExchangeError):
            self.end(*self._failure(error))

    def _failure(self, error: BaseException) -> tuple[ExchangeError, Cause]:
        text = f'{type(error).__name__}: {error}'
        if len(text) > 300:
            text = text[:300] + ' ...'
        where = f' in {place()}' if place() else ''
        found = ExchangeError(self.rank, self.rank, 'an exception', place(), text)
        return found, Cause(None, text + where)

    def end(self, error: ExchangeError, cause: Cause, *, seconds: float = 1) -> None:
        """Closes the connections to all ranks, after saying why, for which `seconds` are given."""
        self.error = error
        reports = self.reports()
        if reports is not None:
            reports.write(cause, asks=True, seconds=seconds)
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
            self.connection.notes(self.operation, self.peer)

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.connection is None:
            return
        self.connection.notes('', None)
        if error is None:
            self.connection.num_open -= 1
        elif isinstance(error, RuntimeError) and not isinstance(error, ExchangeError):
            # Frames that hold the group would keep its connections.
            traceback.clear_frames(trace)
            found = self.connection.lost(error, self.operation, self.peer)
            raise found from error.with_traceback(None)
        else:  # interrupted
            self.connection.left_by(error)


def _reason(cause: Cause, own: Cause, error: Exception) -> str:
    who = 'a rank that is not known' if cause.peer is None else f'rank {cause.peer}'
    if cause.failure is not None:
        return f'{who} failed with {cause.failure}'
    text = str(error).split('. This is typically')[0]
    seen = f' ({text})' if cause.silent == own.silent else ''
    if cause.alive:
        doing = f'waits at {cause.doing}' if cause.doing else 'exchanges nothing'
        return f'{who} was silent for too long: it runs, but {doing}{seen}'
    if cause.silent:
        return f'{who} was silent for too long{seen}'
    return f'{who} has ended or is cut off{seen}'
