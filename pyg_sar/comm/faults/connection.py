"""The connections of the exchanges, and how they end when a rank fails.

A rank that fails closes its own connections. So operations of the others fail at once, and the
reports tell them which rank failed first. gloo's ``abort`` and ``shutdown`` close nothing:
connections close when the last reference to the group goes, so only this module holds one.

What all ranks raise at the same point within GRACE seconds, with nothing under way, leaves the
group as it was. As long as no rank fails, no message is sent for all this.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from pyg_sar.comm import transport
from pyg_sar.comm.faults.errors import ExchangeError, place, placed
from pyg_sar.comm.faults.groups import new_group, timeout_of
from pyg_sar.comm.faults.program_check import code_of, gather_texts, sum_if_alike
from pyg_sar.comm.faults.reports import PATIENCE, Cause, Reports, for_operations, for_reports
from pyg_sar.comm.faults.watch import Watch

_CLASS = re.compile(r' ?\(\w+\)')
GRACE = 2.0  # seconds in which all ranks may raise alike before the one that raised ends the group


class Connection:
    """The exchange group of a default group, and its state.

    Attributes:
        group: The group; None once it has ended.
        timeout: How long a silent rank is waited for; None for what the default group has.
        error: Why it has ended, or None.
        debug: Whether the ranks compare what they do before every operation.
        travelling: Transfers that are under way; their `works` are dropped if the group ends.
        num_operations: Operations that this rank has begun.
        current: The last one of them, in words.
        main: Of a lane the connection that it ends with; else None.
        lanes: Connections of other threads of this process, which end with this one.
    """

    def __init__(
        self,
        number: int,
        timeout: timedelta | None,
        before: Connection | None = None,
        *,
        is_lane: bool = False,
    ) -> None:
        self.number, self.timeout = number, timeout
        self.main = before if is_lane else None
        self.lanes: WeakSet[Connection] = WeakSet()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        self.reports = Reports(store, f'pyg_sar/{number}', self.rank, self.world_size)
        self.error: ExchangeError | None = None
        self.debug: bool = before is not None and before.debug
        self.travelling: set[Any] = set()
        self.num_operations = self._num_open = self._num_raised = 0
        self._verdict: threading.Thread | None = None
        self.group: dist.ProcessGroup | None = None
        limit = timeout or timeout_of(dist.group.WORLD)
        self._seconds = limit.total_seconds() if limit is not None else float('inf')
        self._ending = threading.RLock()
        self.current = ''
        self._watch = Watch(self, self._seconds - for_reports(self._seconds))
        with Guard(self, 'connecting the ranks', None):
            self._meet(dist.group.WORLD if before is None or before.group is None else before.group)
            self.group = new_group(limit)
        transport.watches[self.group] = self._watch
        self._devices: set[torch.device] = set()
        if self.main is not None:
            self.reports = self.main.reports
            self.main.lanes.add(self)
        elif before is not None:
            self.lanes = before.lanes
            for lane in self.lanes:
                lane.main, lane.reports = self, self.reports

    def _meet(self, group: Any) -> None:
        """Sees ranks that have ended, which new_group would wait for."""
        if torch.device('cpu') in getattr(group, '_device_types', ()):
            work = dist.barrier(group=group, async_op=True)
            limit = for_operations(timeout_of(group)) if group is dist.group.WORLD else None
            assert work is not None
            work.wait(limit) if limit is not None else work.wait()

    def connect_devices(self, device: torch.device) -> None:
        """Has all ranks connect their devices, at the first call for one (collective).

        NCCL does it in the first operation of all, and in the first transfer of two; the host waits
        in C. In a step of an exchange it would for ranks without rows in it, or lost by then.
        """
        if device not in self._devices and not transport.goes_by_host(device, self.group):
            with Guard(self, 'connecting the devices of the ranks', None):
                numbers, ones = torch.zeros(self.world_size, device=device), [1] * self.world_size
                transport.all_reduce(numbers, self.group)
                transport.all_to_all(numbers.clone(), numbers, ones, ones, self.group)
        self._devices.add(device)

    def check(self, operation: str) -> None:
        """Raises if the group has ended; waits where that is not decided yet."""
        self._await_verdict()
        first = self.error or (self.main.error if self.main is not None else None)
        if first is not None:
            raise self._error(first.peer, operation, f'exchanges ended before, when {first}')

    def sum_alike(
        self, operation: str, alike: str = '', *, number: int = 0, state: str = ''
    ) -> int | None:
        """Sums a small number over the ranks, or gives None if their states differ (collective).

        Args:
            operation: At which all must be, for messages; else all raise ExchangeError.
            alike: The same in words that are equal on all ranks, with what it moves.
            number: See :func:`sum_if_alike`.
            state: What the ranks ask whether they have it in common, in words.
        """
        self.check(operation)
        words = alike or operation
        # Without the class of the layer: which class it is, forwards are compared by.
        same = f'{words} in {_CLASS.sub("", place())}'
        with Guard(self, operation, None):
            total = sum_if_alike(same + state, number, self.group, self.world_size)
            if total is not None:
                return total
            own = f'{code_of(same)} {placed(words)}'
            texts = gather_texts(own.encode(), self.group, is_short=True)
        codes, said = zip(*(t.decode(errors='replace').split(' ', 1) for t in texts), strict=True)
        rank = next((r for r, code in enumerate(codes) if code != codes[self.rank]), None)
        if rank is None:
            return None
        reason = f'rank {rank} is at {said[rank].strip()}: the ranks run different programs'
        if not self.debug:
            reason += '; debug=True tells where they part'
        error = self._error(rank, operation, reason)
        self._end(error, Cause(rank, doing=placed(words)))
        raise error

    def lost(self, error: Exception, operation: str, peer: int | None) -> ExchangeError:
        """Ends the group after an operation failed, and gives the error that says so."""
        with self._ending:
            self._end_if_first(error, operation, peer)
        assert self.error is not None
        return self._error(self.error.peer, operation, self.error.reason)

    def lost_late(self, error: Exception, operation: str) -> None:
        """The same from a thread that watches: the program's own is about to come to it.

        Which rank was lost is not known: a transfer of NCCL is with two, and fails with its group.
        """
        self._verdict = threading.current_thread()
        self.lost(error, operation, None)

    def _end_if_first(self, error: Exception, operation: str, peer: int | None) -> None:
        if self.error is None:
            text = str(error)
            if isinstance(error, dist.DistBackendError):
                peer = None  # NCCL tells of the group, not of the rank that was lost
            own = Cause(peer, None, 'imed out' in text or 'timeout' in text, placed(operation))
            end = time.monotonic() + (for_reports(self._seconds) if own.silent else PATIENCE)
            # First, so that those who wait for this rank wake up and report as well.
            self._end(self._error(peer, operation, text), own)
            cause = self.reports.first_cause(own, max(end - time.monotonic(), 0.1))
            reason = _reason(cause, own, error)
            if cause.silent and cause.failure is None and not self.debug:
                reason += (
                    '; it may run another program than the others (a call that only one rank '
                    'makes): debug=True tells where they part'
                )
            self.error = self._error(cause.peer, operation, reason)
            if peer is None:  # for those who come later
                self.reports.write(own._replace(peer=cause.peer, silent=cause.silent), seconds=0.2)

    def left_by(self, error: BaseException) -> None:
        """Ends the group after an exception left this rank's program, unless all ranks raised it.

        With operations under way at once; else once the others had GRACE seconds to raise as well.
        """
        # torch.utils.checkpoint ends what it computes again by an exception, on all ranks alike.
        is_stop = type(error).__name__ == '_StopRecomputationError'
        if is_stop or isinstance(error, ExchangeError) or '_pyg_sar_left' in vars(error):
            return
        vars(error)['_pyg_sar_left'] = self.number  # layers inside others see it, too
        self._await_verdict()
        if self.error is not None or self.travelling or self._num_open:
            self.fail(error)
            return
        cause = self._failure(error)
        self.reports.write(cause)  # now: this process may be about to end
        self._num_raised += 1
        at = f'{self.num_operations}/{self._num_raised}'

        def judge() -> None:
            if self.reports.all_raised(at, GRACE):
                self.reports.write(None)
            else:
                self.fail(error, cause)

        self._verdict = threading.Thread(target=judge, daemon=True)
        self._verdict.start()

    def fail(self, error: BaseException, cause: Cause | None = None) -> None:
        """Ends the group because of an exception of this rank's own, and tells it as last words."""
        if self.error is None and not isinstance(error, ExchangeError):
            cause = cause or self._failure(error)
            words = cause.failure or ''
            self._end(ExchangeError(self.rank, self.rank, 'an exception', '', words), cause)

    def _await_verdict(self) -> None:
        verdict, self._verdict = self._verdict, None
        if verdict is not None and verdict is not threading.current_thread():
            verdict.join()

    def _error(self, peer: int | None, operation: str, reason: str) -> ExchangeError:
        return ExchangeError(self.rank, peer, operation, place(), reason)

    def _failure(self, error: BaseException) -> Cause:
        text = f'{type(error).__name__}: {error}'
        return Cause(None, placed(text if len(text) <= 300 else f'{text[:300]} ...'))

    def _end(self, error: ExchangeError, cause: Cause) -> None:
        """Closes the connections to all ranks, after saying why."""
        self.error = error
        self.reports.write(cause, seconds=for_reports(self._seconds) / 2 if cause.silent else 1)
        self.end_as(error)

    def end_as(self, error: ExchangeError) -> None:
        """Closes the connections of this thread and of all lanes, once it has been said why."""
        self.error = error
        for swap in self.travelling:
            swap.works = []  # they keep connections open
        self.travelling.clear()
        for lane in tuple(self.lanes):
            lane.error = lane.error or error
            lane.close()
        self.close()

    def close(self) -> None:
        """Closes the connections; an operation of another thread holds them until it is done."""
        self._watch.close()
        group, self.group = self.group, None
        if group is None:
            return
        # Either may fail: a backend may not know how to abort, and the group may have gone already.
        with suppress(RuntimeError, ValueError, AssertionError):
            if dist.get_backend(group) != 'gloo':
                group.abort()
        with suppress(RuntimeError, ValueError, AssertionError):
            dist.destroy_process_group(group)


class Guard:
    """An operation with other ranks: its errors come out as :class:`ExchangeError`."""

    __slots__ = ('connection', 'operation', 'peer')

    def __init__(self, connection: Connection, operation: str, peer: int | None) -> None:
        self.connection, self.operation, self.peer = connection, operation, peer

    def __enter__(self) -> None:
        self.connection.check(self.operation)
        self.connection._num_open += 1
        self.connection.current = self.operation

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.connection._num_open -= 1
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
    text = ' '.join(str(error).split('. This is typically')[0].split())
    seen = f' ({text[:300]})' if cause.silent == own.silent else ''
    if not cause.silent:
        return f'{who} has ended or is cut off{seen}'
    waits = f': it waits at {cause.doing}' if cause.doing else ''
    return f'{who} was silent for too long{waits}{seen}'
