"""Counts seconds and rows for the innermost pass under way in a thread."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from pyg_sar.utils.hook import OUTSIDE, Transfer, Watcher
from pyg_sar.utils.scoped import Scoped

_SIZE = r'[0-9]+\.?[0-9]*|\.[0-9]+'
_POWERS = {'': 0, 'K': 1, 'M': 2, 'G': 3, 'T': 4}


@dataclass
class Counts:
    """What passes of a layer exchange, wait and compute, or what is outside of layers.

    Attributes:
        rows_received: Rows that came from other ranks; where several tensors travel, those of each.
        rows_sent: Rows that went to other ranks.
        bytes_received: Bytes of these rows, as they travelled.
        bytes_sent: Bytes of these rows, as they travelled.
        waiting: Seconds inside operations with other ranks: until rows or sums are there.
        computing: All other seconds.
    """

    rows_received: int = 0
    rows_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    waiting: float = 0.0
    computing: float = 0.0


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
        """A pass begins."""
        self.count('computing')
        name = f'{layer}, {phase}' if layer else OUTSIDE
        self.here.passes.append((name, self.counts_of(name)))

    def leave_layer(self) -> None:
        """The innermost pass ends."""
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
        """Counts the time until now as computing."""
        self.count('computing')
        self.here.operation = operation if peer is None else ''

    def leave_operation(self) -> None:
        """Counts the time until now as waiting."""
        self.count('waiting')

    def moved(self, transfer: Transfer) -> None:
        """Counts rows."""
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


def parse_bytes(text: str) -> int:
    """``'64GB'``, ``'64 GiB'`` or plain bytes; a ValueError for all but positive sizes."""
    match = re.fullmatch(rf'\s*({_SIZE})\s*(?:([KMGT])(i?))?B?\s*', text)
    unit = (1024 if match[3] else 1000) ** _POWERS[match[2] or ''] if match else 0
    size = round(float(match[1]) * unit) if match else 0
    if size < 1:
        raise ValueError(f"expected a size such as 64GB or 500MiB (got '{text}')")
    return size


def memory_size(text: str) -> int:
    """Bytes of memory; a ValueError for a small number whose unit was forgotten."""
    size = parse_bytes(text)
    if size < 10**6 and text.strip().isdigit():
        raise ValueError(f'expected a size with a unit (got {text} bytes? say {text}GB)')
    return size
