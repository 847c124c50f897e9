"""What this process holds, from /proc: Linux only. Needs the standard library alone."""

from __future__ import annotations

import ctypes
from pathlib import Path


class PeakMemory:
    """The most memory this process holds from now on, beyond what it holds now."""

    def __init__(self) -> None:
        self.restart()
        self.before = _status('VmRSS')

    def restart(self) -> None:
        """Forgets the peak so far, but not what the process held before."""
        Path('/proc/self/clear_refs').write_text('5')  # proc(5): the peak starts again at RSS

    def bytes(self) -> int:
        return _status('VmHWM') - self.before


def resident_peak() -> int:
    """The most that this process has ever held, in bytes."""
    return _status('VmHWM')


def proportional() -> int:
    """What this process holds now, in bytes; of a page that n processes have in common an n-th."""
    return _status('Pss', 'smaps_rollup')


def _status(key: str, file: str = 'status') -> int:
    for line in Path('/proc/self', file).read_text().splitlines():
        if line.startswith(f'{key}:'):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f'expected {key} in /proc/self/{file} (got none)')


def read_libraries() -> None:
    """Reads the code of all loaded libraries, so that it counts as held before.

    A forked process has none of its parent's file pages mapped; the first steps would seem to need
    tens of MiB of memory that is torch's code.
    """
    libc = ctypes.CDLL(None)
    for line in Path('/proc/self/maps').read_text().splitlines():
        place, access, *_, name = line.split(maxsplit=5)
        if access.startswith('r') and access[1] == '-' and name.startswith('/'):
            start, end = (int(address, 16) for address in place.split('-'))
            populate_read = 22  # madvise(2), Linux 5.14; refused before, which only costs accuracy
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), populate_read)
