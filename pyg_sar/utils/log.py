"""Seconds and rows of each layer: what counts them, and the lines of the log.

The loggers are those of the modules, below ``pyg_sar``. :func:`set_log` or the environment variable
PYG_SAR_LOG turns them on, to stderr unless the program has handlers of its own. A program that
only sets a level gets the lines of wrapping and loading; those of layers need a watcher.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import Literal, get_args

from pyg_sar.utils import hook
from pyg_sar.utils.hook import OUTSIDE, Transfer, Watcher
from pyg_sar.utils.scoped import Scoped


@dataclass
class Counts:
    """What passes of a layer exchange, wait and compute, or what is outside of layers."""

    rows_received: int = 0  # from other ranks; where several tensors travel, those of each
    rows_sent: int = 0
    bytes_received: int = 0  # as they travelled
    bytes_sent: int = 0
    waiting: float = 0.0  # seconds inside operations with other ranks: until rows or sums are there
    computing: float = 0.0  # all other seconds


class _UnderWay:
    """The passes of a thread, the time up to which its seconds are counted, the last operation."""

    def __init__(self, outside: Counts) -> None:
        self.passes = [(OUTSIDE, outside)]
        self.mark = time.perf_counter()
        self.operation = ''


class Meter(Watcher):
    """Adds seconds and rows to the counts of the innermost pass, or to `outside`."""

    def __init__(self, outside: Counts) -> None:
        self._outside = outside
        self._under_way: Scoped[_UnderWay | None] = Scoped(None)

    @property
    def here(self) -> _UnderWay:
        """The passes of this thread."""
        under_way = self._under_way.value
        if under_way is None:
            under_way = self._under_way.value = _UnderWay(self._outside)
        return under_way

    def clock(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def counts_of(self, name: str) -> Counts:
        """What a pass that begins adds to."""
        return self._outside

    def enter_layer(self, layer: str, phase: str) -> None:
        self.count('computing')
        name = f'{layer}, {phase}' if layer else OUTSIDE
        self.here.passes.append((name, self.counts_of(name)))

    def leave_layer(self) -> None:
        self.end_pass()

    def end_pass(self) -> tuple[str, Counts]:
        """Its name and what was counted."""
        self.count('computing')
        return self.here.passes.pop()

    def count(self, kind: str) -> float:
        """Counts the seconds since the last call as `kind`, and returns them."""
        here, now = self.here, self.clock()
        counts, seconds = here.passes[-1][1], now - here.mark
        setattr(counts, kind, getattr(counts, kind) + seconds)
        here.mark = now
        return seconds

    def enter_operation(self, operation: str, peer: int | None) -> None:
        self.count('computing')
        self.here.operation = operation if peer is None else ''

    def leave_operation(self) -> None:
        self.count('waiting')

    def moved(self, transfer: Transfer) -> None:
        counts = self.here.passes[-1][1]
        for name in ('rows_received', 'rows_sent', 'bytes_received', 'bytes_sent'):
            setattr(counts, name, getattr(counts, name) + getattr(transfer, name))


def bytes_text(num_bytes: float) -> str:
    """``'512 B'``, ``'4.5 KiB'``, ``'1.2 GiB'``."""
    for unit in ('B', 'KiB', 'MiB', 'GiB'):
        if num_bytes < 1024:
            return f'{num_bytes:.0f} B' if unit == 'B' else f'{num_bytes:.1f} {unit}'
        num_bytes /= 1024
    return f'{num_bytes:.1f} TiB'


LogLevel = Literal['off', 'info', 'debug']

_top = logging.getLogger('pyg_sar')
_top.addHandler(logging.NullHandler())
_logger = logging.getLogger(__name__)

_running: Log | None = None


def say(logger: logging.Logger, level: int, text: str) -> None:
    """Logs a line that begins with the rank: ``[rank 1/4] ...``."""
    if logger.isEnabledFor(level):
        logger.log(level, '[rank %d/%d] %s', *hook.rank_and_size(), text)


def check_log(level: str | None, name: str = "'log'") -> None:
    """Raises a ValueError if `level` is no level."""
    if level is not None and level not in get_args(LogLevel):
        raise ValueError(f'{name} must be one of {get_args(LogLevel)} (got {level!r})')


def set_log(level: LogLevel | None) -> None:
    """Sets what this process logs from now on; a ValueError if it is no level.

    ``'info'``: a line when a model is wrapped, a shard is loaded, and for the first forward and
    backward of every layer. ``'debug'``: also one for every layer, pass, block and operation of all
    ranks. ``'off'``: nothing. None leaves it as it is.
    """
    global _running
    check_log(level)
    if level is None or (_running is not None and level == _running.level):
        return  # ranks that are threads set it one after the other
    if _running is not None:
        hook.remove(_running)
    _running = None
    if level == 'off':
        _top.setLevel(logging.NOTSET)
        _top.removeHandler(_stderr)
        return
    _top.setLevel(level.upper())
    handlers = [*_top.handlers, *logging.getLogger().handlers]
    if all(isinstance(handler, logging.NullHandler) for handler in handlers):
        _top.addHandler(_stderr)
    _running = Log(level)
    hook.add(_running)


def set_log_by_environment() -> None:
    """Sets the level of PYG_SAR_LOG, if it is set; raises ValueError if it is no level."""
    level = os.environ.get('PYG_SAR_LOG', '').lower() or None
    check_log(level, 'PYG_SAR_LOG')
    set_log(level)  # type: ignore[arg-type]


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the present ``sys.stderr``."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter('%(asctime)s %(message)s', '%H:%M:%S'))

    @property
    def stream(self) -> object:
        return sys.stderr


_stderr = _Stderr()


class Log(Meter):
    """Logs layers (the first time at level info), and at level debug blocks and operations.

    The line of a block has the seconds of its pass so far.
    """

    watches_all = True

    def __init__(self, level: LogLevel) -> None:
        super().__init__(Counts())
        self.level = level
        self._seen: set[tuple[object, str]] = set()

    def counts_of(self, name: str) -> Counts:
        """Every pass is counted by itself."""
        return Counts()

    def leave_layer(self) -> None:
        """Logs the traffic and the seconds of the whole pass."""
        name, counts = self.end_pass()
        if name == OUTSIDE:  # a loss: its operations have their own lines
            return
        key = hook.thread_rank.value, name
        level, what = (
            (logging.DEBUG, 'all') if key in self._seen else (logging.INFO, 'the first time')
        )
        self._seen.add(key)
        say(_logger, level, f'{name}, {what}: {_traffic(counts)}, {_seconds(counts)}')

    def leave_operation(self) -> None:
        seconds = self.count('waiting')
        if self.here.operation:
            text = f'{self.here.passes[-1][0]}: {self.here.operation}, waited {seconds:.6f} s'
            say(_logger, logging.DEBUG, text)

    def moved(self, transfer: Transfer) -> None:
        super().moved(transfer)
        if _logger.isEnabledFor(logging.DEBUG):
            name, counts = self.here.passes[-1]
            so_far = '' if name == OUTSIDE else f', so far {_seconds(counts)}'
            text = f'{name}, {transfer.kind} of {transfer.what}: {_traffic(transfer)}{so_far}'
            say(_logger, logging.DEBUG, text)


def _traffic(counts: Counts | Transfer) -> str:
    return (
        f'received {counts.rows_received} rows ({bytes_text(counts.bytes_received)}), '
        f'sent {counts.rows_sent} rows ({bytes_text(counts.bytes_sent)})'
    )


def _seconds(counts: Counts) -> str:
    return f'waited {counts.waiting:.6f} s, computed {counts.computing:.6f} s'
