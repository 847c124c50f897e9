"""The file on disk that holds evicted storages.

It has no name, so that a process that is killed leaves nothing. Offsets are multiples of a page.
Sizes are rounded up to one of eight in an octave, so that freed bytes fit later storages, and the
file grows by at most an eighth.

The system does not read ahead: next in the file is another tensor. So reads are announced, and the
disk gets many requests at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PAGE = 4096
_CALL_BYTES = 1 << 30  # Linux moves at most 2 GiB at a time
_GROWTH = 64 << 20


class SpillFile:
    """A file that nobody else sees, with offsets for storages.

    It takes `reserve` bytes on disk at once, and more when it needs more. `num_bytes` is how long
    it is; `written` and `read` count bytes so far.
    """

    def __init__(self, folder: str | Path, reserve: int = 0) -> None:
        self.folder = Path(folder)
        self.num_bytes = self.written = self.read = 0
        self._used = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise self._named(error, 'making a file for') from error
        self._process = os.getpid()
        self._advise(0, 0, 'POSIX_FADV_RANDOM')
        try:
            self._grow(max(reserve, _GROWTH))
        except OSError:
            self.close()
            raise

    def take(self, num_bytes: int) -> int:
        """The offset of so many free bytes; raises OSError if the disk is full."""
        size = _rounded(num_bytes)
        if self._free[size]:
            return self._free[size].pop()
        if self._used + size > self.num_bytes:
            self._grow(max(self._used + size, self.num_bytes + _GROWTH))
        offset, self._used = self._used, self._used + size
        return offset

    def give_back(self, offset: int, num_bytes: int) -> None:
        """Frees so many bytes at an offset."""
        self._free[_rounded(num_bytes)].append(offset)

    def write(self, address: int, num_bytes: int, offset: int) -> None:
        """Writes memory to its offset."""
        for start, part in _parts(address, num_bytes):
            done = 0
            while done < len(part):
                try:
                    count = os.pwrite(self._fd, part[done:], offset + start + done)
                except OSError as error:
                    raise self._named(error, 'writing') from error
                done += count
        self.written += num_bytes

    def announce(self, num_bytes: int, offset: int) -> None:
        """Has the disk begin to read bytes that :meth:`get` reads next."""
        self._advise(num_bytes, offset, 'POSIX_FADV_WILLNEED')

    def get(self, address: int, num_bytes: int, offset: int) -> None:
        """Reads bytes into memory."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "expected the process that called 'run_in_turns' (got a fork of it, which cannot "
                'read what was evicted; make what it needs before ranks take turns, or use no '
                'worker processes)'
            )
        for start, part in _parts(address, num_bytes):
            done = 0
            while done < len(part):
                try:
                    count = os.preadv(self._fd, [part[done:]], offset + start + done)
                except OSError as error:
                    raise self._named(error, 'reading') from error
                if count == 0:
                    raise self._named(OSError(errno.EIO, 'the file is shorter'), 'reading')
                done += count
        self.read += num_bytes

    def close(self) -> None:
        """Gives the disk space back; a rank that still reads or writes gets an error."""
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _advise(self, num_bytes: int, offset: int, what: str) -> None:
        if hasattr(os, 'posix_fadvise'):  # not on macOS
            with suppress(OSError):  # the read says it
                os.posix_fadvise(self._fd, offset, num_bytes, getattr(os, what))

    def _grow(self, num_bytes: int) -> None:
        try:
            if hasattr(os, 'posix_fallocate'):  # not on macOS
                os.posix_fallocate(self._fd, 0, num_bytes)
        except OSError as error:
            raise self._named(error, f'reserving {num_bytes} bytes') from error
        self.num_bytes = num_bytes

    def _named(self, error: OSError, what: str) -> OSError:
        words = f'{error.strerror} ({what} evicted memory)'
        return OSError(error.errno, words, str(self.folder))


def _rounded(num_bytes: int) -> int:
    step = max(1 << max(num_bytes.bit_length() - 4, 0), _PAGE)
    return -(-num_bytes // step) * step


def _parts(address: int, num_bytes: int) -> list[tuple[int, memoryview]]:
    """Memory in parts that one call can move, with the starts of these."""
    memory = memoryview((ctypes.c_char * num_bytes).from_address(address)).cast('B')
    return [(at, memory[at : at + _CALL_BYTES]) for at in range(0, num_bytes, _CALL_BYTES)]
