"""The process group of the exchanges, which is not the default group, and how it ends.

A rank that fails closes its own connections, after it has written why into the store. So operations
of the others fail at once, and the reports tell them which rank failed first. gloo's ``abort`` and
``shutdown`` close nothing: connections close when the last reference to the group goes, so only
the comm holds one.

An exception that all ranks raise at the same point within GRACE seconds, with nothing under way,
leaves the group as it was. As long as no rank fails, no message is sent for all this.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import _StopRecomputationError

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import ExchangeError, PartedError, at_location, location
from pyg_sar.comm.faults import PATIENCE, Reports, RootCause, TransferWatch, for_reports
from pyg_sar.comm.new_group import meet, new_group, timeout_of
from pyg_sar.comm.shared_memory import SharedMemory, compute_first, find_shared
from pyg_sar.utils import hook

_numbers = itertools.count()
GRACE = 2.0  # seconds in which all ranks may raise alike before the one that raised ends the group


class Connection(Comm, AbstractContextManager[Any]):
    """A comm whose connections may break; as a context it is the operation that has begun last."""

    reports: Reports  # of the ranks that have ended
    _small: torch.device  # of messages that are no rows
    seconds = float('inf')  # how long a silent rank is waited for

    def __init__(self) -> None:
        super().__init__()
        self.error: ExchangeError | None = None  # why it has ended
        self._num_operations = self._num_raised = 0
        self._inside: threading.Thread | None = None  # that is in an operation
        self._outer: list[tuple[threading.Thread | None, Any]] = []  # at the begin of each; reports
        self._verdict: threading.Thread | None = None  # finds out whether and why this one ends
        self._ending = threading.RLock()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.world = weakref.ref(dist.group.WORLD)
        self.timeout: timedelta | None = None
        self._devices: set[torch.device] = set()  # that are connected
        self._watch: TransferWatch | None = None
        self._shared = SharedMemory()

    def connect(self) -> None:
        """Makes the group (collective)."""
        limit = self.timeout or timeout_of(dist.group.WORLD)
        self.seconds = limit.total_seconds() if limit is not None else float('inf')
        if self.group is None:
            store = dist.distributed_c10d._get_default_store()
            self.reports = Reports(store, f'pyg_sar/{next(_numbers)}', self.rank, self.size)
        try:
            meet(self.group)
            self.group = new_group(limit)
            # A rank that closed it now would end those that are still connecting.
            meet(self.group)
            self._small = torch.device('cpu')
            types: Sequence[torch.device] = self.group._device_types
            if types and self._small not in types:
                self._small = types[0]
            self._shared = find_shared(
                self.rank, lambda own: self.all_gather(own.to(self._small)).cpu(), self.seconds
            )
            if self._shared.pids:
                compute_first()
        except RuntimeError as error:
            traceback.clear_frames(error.__traceback__)
            raise self.lost(error.with_traceback(None), 'connecting the ranks', None) from error
        self._watch = TransferWatch(self._lost_on_device, self.seconds - for_reports(self.seconds))
        self._devices = set()

    def set_timeout(self, timeout: timedelta | None) -> None:
        """See :meth:`Comm.set_timeout` (collective if it is another time)."""
        if timeout is None or timeout == self.timeout:
            return
        self.check('an exchange')
        self.timeout, before, watch = timeout, self.group, self._watch
        self.connect()
        assert watch is not None
        watch.close()
        dist.destroy_process_group(before)

    def check(self, operation: str) -> None:
        """Raises if the group has ended; waits where that is not decided yet; connects at first."""
        if self._verdict is not None:
            self._await_verdict()
        if self.error is not None:
            reason = f'exchanges ended before, when {self.error}'
            raise self._error(self.error.peer, operation, reason)
        if self.group is None:
            self.connect()

    def _await_verdict(self) -> None:
        verdict, self._verdict = self._verdict, None
        if verdict is not None and verdict is not threading.current_thread():
            verdict.join()

    def guard(
        self, operation: str, peer: int | None = None, *, tag: str = '', is_wait: bool = False
    ) -> AbstractContextManager[Any]:
        # By default a device has a thread of its own for backward. That begins with the first layer
        # that is ready, while a loss on the CPU, or one of several, is about to make others ready:
        # so ranks would take two layers in different orders. Messages of NCCL, and collectives,
        # have no tags that could tell them apart. In one thread the last layer always comes first.
        torch.autograd.set_multithreading_enabled(False)
        if self._process != os.getpid():
            self.refuse_process(operation)
        report = hook.in_operation(operation, peer, is_wait) if hook.watchers else None
        if report is not None:
            report.__enter__()
        try:
            if self.group is None or self._verdict is not None:
                self.check(operation)
            before, thread = self._inside, threading.current_thread()
            if before is not None and before is not thread:
                doing = at_location(operation)
                alone = RuntimeError(
                    f'one thread of a rank computes on rows (got {doing} in a second one, while '
                    f"'{before.name}' is at {self.operation}): run the models one after another"
                )
                self.fail(alone)
                raise alone
        except BaseException:
            if report is not None:
                report.__exit__(*sys.exc_info())
            raise
        self._outer.append((before, report))
        self._inside, self.operation, self.peer = thread, operation, peer
        self._num_operations += not is_wait
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del trace  # its frames may hold the group
        try:
            if error is not None:
                self._stop(error)
        finally:
            self._inside, report = self._outer.pop()
            if report is not None:
                report.__exit__(None, None, None)

    def _stop(self, error: BaseException) -> None:
        """Ends the group after an exception in an operation, or an interrupt."""
        if isinstance(error, (ExchangeError, PartedError)):
            return
        if not isinstance(error, RuntimeError):
            self.fail(error)
            return
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                f'torch.func (grad, vmap, jacrev ...) cannot go through {self.operation}: use '
                'backward() or torch.autograd.grad'
            ) from None
        # Frames that hold the group would keep its connections.
        traceback.clear_frames(error.__traceback__)
        # The error that comes has the words of the backend.
        raise self.lost(error.with_traceback(None), self.operation, self.peer) from None

    def lost(self, error: Exception, operation: str, peer: int | None) -> ExchangeError:
        """Ends the group after an operation failed, and gives the error that says so.

        `error` is what the backend raised; `peer` is None if it is not known with which rank it
        was.
        """
        with self._ending:
            if self.error is None:
                self.error = self._find_cause(error, operation, peer)
        return self._error(self.error.peer, operation, self.error.reason)

    def _find_cause(self, error: Exception, operation: str, peer: int | None) -> ExchangeError:
        if isinstance(error, dist.DistBackendError):
            peer = None  # NCCL tells of the group, not of the rank that was lost
        text = str(error)
        own = RootCause(peer, None, 'imed out' in text or 'timeout' in text, at_location(operation))
        # In a collective the others tell which of them was not lost; that ends the wait.
        patience = (
            for_reports(self.seconds) if own.silent else PATIENCE * (6 if peer is None else 1)
        )
        end = time.monotonic() + patience
        # First, so that those who wait for this rank wake up and report as well.
        self.reports.write(own, seconds=patience / 2 if own.silent else 1)
        self.end(self._error(peer, operation, _reason(own, own, error)))
        cause = self.reports.root_cause(own, max(end - time.monotonic(), 0.1))
        return self._error(cause.peer, operation, _reason(cause, own, error))

    def _lost_on_device(self, error: Exception, operation: str) -> None:
        """Ends the group after a lost transfer, in the watching thread; `check` waits for it."""
        self._verdict = threading.current_thread()
        self.lost(error, operation, None)

    def left_by(self, error: BaseException) -> None:
        """See :meth:`Comm.left_by`; with transfers under way the group ends at once.

        Else it ends once the others had GRACE seconds to raise as well.
        """
        # torch.utils.checkpoint ends what it computes again by an exception, on all ranks alike.
        is_stop = isinstance(error, _StopRecomputationError) or not self.is_here()
        if is_stop or isinstance(error, ExchangeError) or '_pyg_sar_left' in vars(error):
            return
        vars(error)['_pyg_sar_left'] = True  # layers inside others see it, too
        self._await_verdict()
        if self.group is None or self.travelling:
            self.fail(error)
            return
        cause = _failure(error)
        self.reports.write(cause)  # now: this process may be about to end
        self._num_raised += 1
        at = f'{self._num_operations}/{self._num_raised}'

        def judge() -> None:
            if self.reports.all_raised(at, GRACE):
                self.reports.write(None)
            else:
                self.fail(error, cause)

        self._verdict = threading.Thread(target=judge, daemon=True)
        self._verdict.start()

    def fail(self, error: BaseException, cause: RootCause | None = None) -> None:
        """Ends the group because of an exception of this rank's own, and reports it."""
        if self.error is not None or self.group is None:
            return
        cause = cause or _failure(error)
        self.reports.write(cause)
        self.end(ExchangeError(self.rank, self.rank, 'an exception', '', cause.failure or ''))

    def end(self, error: ExchangeError) -> None:
        """Closes the connections, after the report."""
        self.error = self.error or error
        for send_recv in self.travelling:
            send_recv.works = []  # they keep connections open
        self.travelling.clear()
        self.close()

    def close(self) -> None:
        """Closes the connections; an operation of another thread holds them until it is done."""
        if self._watch is not None:
            self._watch.close()
        if self.error is not None:
            self._shared.forget()
        group, self.group = self.group, None
        if group is None:
            return
        # Either may fail: a backend may not know how to abort, and the group may have gone already.
        with suppress(RuntimeError, ValueError, AssertionError):
            if dist.get_backend(group) != 'gloo':
                group.abort()
        with suppress(RuntimeError, ValueError, AssertionError):
            dist.destroy_process_group(group)

    def _error(self, peer: int | None, operation: str, reason: str) -> ExchangeError:
        return ExchangeError(self.rank, peer, operation, location(), reason)


def _failure(error: BaseException) -> RootCause:
    text = f'{type(error).__name__}: {error}'
    return RootCause(None, at_location(text if len(text) <= 300 else f'{text[:300]} ...'))


def _reason(cause: RootCause, own: RootCause, error: Exception) -> str:
    who = 'a rank that is not known' if cause.peer is None else f'rank {cause.peer}'
    if cause.failure is not None:
        return f'{who} failed with {cause.failure}: see its traceback'
    text = ' '.join(str(error).split('. This is typically')[0].split())
    text = re.sub(r'^\[\S+:\d+\] ', '', text)  # gloo begins with a line of its own source
    seen = f' ({text[:300]})' if cause.silent == own.silent else ''
    if not cause.silent:
        advice = 'see the end of its log; all ranks must make the same calls'
        return f'{who} has ended or is cut off: {advice}{seen}'
    waits = f': it waits at {cause.doing}' if cause.doing else ''
    advice = 'all ranks must make the same calls; if it computes, give a longer timeout'
    return f'{who} was silent for too long{waits}: {advice}{seen}'
