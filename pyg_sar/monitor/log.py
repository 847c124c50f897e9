"""Lines for people: what each layer exchanges, how long it waits and how long it computes.

The loggers are those of the modules, below ``pyg_sar``, and quiet. :func:`set_log` or the
environment variable PYG_SAR_LOG turns them on, to stderr unless the program has handlers of its
own. Times of blocks and operations need a watcher, which only that puts in place: a program that
merely sets a level sees what is told at construction and at load.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch.distributed as dist

from pyg_sar.monitor import hook
from pyg_sar.monitor.hook import Transfer, Watcher
from pyg_sar.monitor.ranges import Ranges
from pyg_sar.monitor.units import bytes_text

LogLevel = Literal['off', 'info', 'debug']

_top = logging.getLogger('pyg_sar')
_top.addHandler(logging.NullHandler())
_logger = logging.getLogger(__name__)

_OUTSIDE = 'outside of layers'

_clock = time.perf_counter
_running: Log | None = None


def say(logger: logging.Logger, level: int, text: str) -> None:
    """Logs a line that begins with the rank: ``[rank 1/4] ...``."""
    if not logger.isEnabledFor(level):
        return
    rank, world_size = 0, 1
    if dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    logger.log(level, '[rank %d/%d] %s', rank, world_size, text)


def check_log(level: LogLevel | None) -> None:
    """Raises a ValueError for what is no level."""
    if level is not None and level not in get_args(LogLevel):
        raise ValueError(f"'log' must be one of {get_args(LogLevel)} or None (got {level!r})")


def set_log(level: LogLevel | None) -> None:
    """What this process tells from now on.

    Args:
        level: ``'info'``: a line when a model is wrapped, a shard is loaded, and for the first
            forward and backward of every layer. ``'debug'``: also one for every layer, pass, block
            and operation with other ranks. ``'off'``: nothing. None leaves it as it is.

    Raises:
        ValueError: If it is none of these.
    """
    global _running
    check_log(level)
    if level is None:
        return
    if _running is not None:
        hook.remove(_running)
        if _running.has_ranges:
            Ranges.let_go()
        _running = None
    if level == 'off':
        _top.setLevel(logging.NOTSET)
        if _stderr in _top.handlers:
            _top.removeHandler(_stderr)
        return
    _top.setLevel(level.upper())
    if not _has_handlers():
        _top.addHandler(_stderr)
    _running = Log(has_ranges=level == 'debug')
    hook.add(_running)
    if _running.has_ranges:
        Ranges.use()


def set_log_by_environment() -> None:
    """Does what PYG_SAR_LOG asks for, if it is there.

    Raises:
        ValueError: If it is no level.
    """
    level = os.environ.get('PYG_SAR_LOG', '').lower()
    if level and level not in get_args(LogLevel):
        raise ValueError(f'PYG_SAR_LOG must be one of {get_args(LogLevel)} (got {level!r})')
    set_log(level or None)  # type: ignore[arg-type]


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what ``sys.stderr`` is at the time."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter('%(asctime)s %(message)s', '%H:%M:%S'))

    @property
    def stream(self) -> object:
        return sys.stderr


_stderr = _Stderr()


def _has_handlers() -> bool:
    """Whether lines reach a handler already, ours or the program's."""
    handlers = [*_top.handlers, *logging.getLogger().handlers]
    return any(not isinstance(handler, logging.NullHandler) for handler in handlers)


@dataclass
class _Span:
    """A layer's pass under way, or what is outside of layers.

    Attributes:
        place: What lines call it.
        start: When it began, in seconds of the clock.
        since: When the last line was told.
        waited: Seconds in operations with other ranks, since the beginning.
        waited_since: The same since the last line.
        inner: Seconds of spans inside.
        moved: Rows received, rows sent, bytes received, bytes sent.
        pending: Transfers of the operation that is under way.
    """

    place: str
    start: float
    since: float
    waited: float = 0.0
    waited_since: float = 0.0
    inner: float = 0.0
    moved: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    pending: list[Transfer] = field(default_factory=list)


class _Spans(threading.local):
    def __init__(self) -> None:
        now = _clock()
        self.stack = [_Span(_OUTSIDE, now, now)]
        self.operation: tuple[str, int | None, float] | None = None


class Log(Watcher):
    """Tells of layers (the first time at level info), and at level debug of blocks and operations.

    A line of a block has the seconds since the line before it: what the ranks waited for the
    block's rows, and what was computed meanwhile, which is mostly the block before it.

    Attributes:
        has_ranges: Whether it has layers and operations named for torch.profiler, too.
    """

    def __init__(self, *, has_ranges: bool) -> None:
        self.has_ranges = has_ranges
        self._here = _Spans()
        self._seen: set[str] = set()

    def enter_layer(self, layer: str, phase: str) -> None:
        """Begins to count."""
        now = _clock()
        place = f'{layer}, {phase}' if layer else _OUTSIDE
        self._here.stack.append(_Span(place, now, now))

    def leave_layer(self) -> None:
        """Tells what the pass took, all together."""
        span, now = self._here.stack.pop(), _clock()
        self._here.stack[-1].inner += now - span.start
        if span.place == _OUTSIDE:  # a loss: its operations have their own lines
            return
        is_first = span.place not in self._seen
        self._seen.add(span.place)
        computed = now - span.start - span.waited - span.inner
        text = (
            f'{span.place}, {"the first time" if is_first else "all"}: {_traffic(*span.moved)}, '
            f'waited {span.waited:.6f} s, computed {computed:.6f} s'
        )
        say(_logger, logging.INFO if is_first else logging.DEBUG, text)

    def enter_operation(self, operation: str, peer: int | None, is_wait: bool) -> None:
        """Begins to wait."""
        self._here.operation = operation, peer, _clock()

    def leave_operation(self) -> None:
        """Adds up the wait; tells of it where all ranks took part, else the transfer will."""
        if self._here.operation is None:
            return
        (operation, peer, start), now = self._here.operation, _clock()
        self._here.operation = None
        span = self._here.stack[-1]
        span.waited += now - start
        span.waited_since += now - start
        pending, span.pending = span.pending, []
        for transfer in pending:
            self._tell(span, transfer)
        if peer is None and not pending:
            if _logger.isEnabledFor(logging.DEBUG):
                say(_logger, logging.DEBUG, f'{span.place}: {operation}, {_seconds(span, now)}')
            span.since, span.waited_since = now, 0.0

    def moved(self, transfer: Transfer) -> None:
        """Tells of a block."""
        span = self._here.stack[-1]
        new = transfer.rows_received, transfer.rows_sent
        new_bytes = transfer.bytes_received, transfer.bytes_sent
        span.moved = [a + b for a, b in zip(span.moved, (*new, *new_bytes), strict=True)]
        if self._here.operation is not None:
            span.pending.append(transfer)
        else:
            self._tell(span, transfer)

    def _tell(self, span: _Span, transfer: Transfer) -> None:
        now = _clock()
        if _logger.isEnabledFor(logging.DEBUG):
            t = transfer
            moved = _traffic(t.rows_received, t.rows_sent, t.bytes_received, t.bytes_sent)
            text = f'{span.place}, {t.kind} of {t.what}: {moved}, {_seconds(span, now)}'
            say(_logger, logging.DEBUG, text)
        span.since, span.waited_since = now, 0.0


def _traffic(rows_received: int, rows_sent: int, bytes_received: int, bytes_sent: int) -> str:
    return (
        f'received {rows_received} rows ({bytes_text(bytes_received)}), '
        f'sent {rows_sent} rows ({bytes_text(bytes_sent)})'
    )


def _seconds(span: _Span, now: float) -> str:
    waited = f'waited {span.waited_since:.6f} s'
    if span.place == _OUTSIDE:
        return waited
    return f'{waited}, computed {max(now - span.since - span.waited_since, 0.0):.6f} s'
