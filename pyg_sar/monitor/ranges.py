"""Layers and operations as named ranges in the timeline of torch.profiler.

A range costs 12 microseconds even if nobody records, a good part of a small message. So ranges are
made only while a profile or the debug log is on, and then only where torch's profiler records.
"""

from __future__ import annotations

import threading

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

from pyg_sar.monitor import hook
from pyg_sar.monitor.hook import Watcher


class Ranges(Watcher):
    """Opens and closes the ranges; :meth:`use` puts one in place for everybody.

    ``pyg_sar::layer 'convs.0' (SAGEConv), forward`` holds
    ``pyg_sar::wait: receiving the rows of part 2 (layer 'convs.0' (SAGEConv), forward)``.
    """

    _num_users = 0
    _used: Ranges | None = None

    @classmethod
    def use(cls) -> None:
        """Has ranges made until :meth:`let_go` is called as often."""
        if cls._used is None:
            cls._used = cls()
            hook.add(cls._used)
        cls._num_users += 1

    @classmethod
    def let_go(cls) -> None:
        """The caller needs no ranges any more."""
        cls._num_users -= 1
        if cls._num_users == 0 and cls._used is not None:
            hook.remove(cls._used)
            cls._used = None

    def __init__(self) -> None:
        self._here = _Open()

    def enter_layer(self, layer: str, phase: str) -> None:
        """Opens ``pyg_sar::layer 'convs.0' (SAGEConv), forward``."""
        place = f'{layer}, {phase}' if layer else f'outside of layers, {phase}'
        self._here.places.append(place)
        self._open(f'pyg_sar::{place}')

    def leave_layer(self) -> None:
        """Closes it."""
        self._here.places.pop()
        self._close()

    def enter_operation(self, operation: str, peer: int | None, is_wait: bool) -> None:
        """Opens one for the operation."""
        verb = 'wait: ' if is_wait else 'start: ' if peer is not None else ''
        place = self._here.places[-1] if self._here.places else 'outside of layers'
        self._open(f'pyg_sar::{verb}{operation} ({place})')

    def leave_operation(self) -> None:
        """Closes it."""
        self._close()

    def _open(self, name: str) -> None:
        opened = record_function(name) if _profiler_enabled() else None
        if opened is not None:
            opened.__enter__()  # type: ignore[no-untyped-call]
        self._here.ranges.append(opened)

    def _close(self) -> None:
        opened = self._here.ranges.pop()
        if opened is not None:
            opened.__exit__(None, None, None)


class _Open(threading.local):
    def __init__(self) -> None:
        self.places: list[str] = []
        self.ranges: list[record_function | None] = []
