"""Files of a partition folder that are mapped: their pages go when a turn ends, and come by faults.

Linux alone can be asked where files are mapped; elsewhere pages stay until the system takes them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from pathlib import Path

import torch

_MAPS = Path('/proc/self/smaps')
_DONTNEED = 4  # sys/mman.h
_HEAD = re.compile(r'^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ +(/.*)$', re.MULTILINE)


class MappedFiles:
    """Address ranges of mapped files that nobody has written to in memory."""

    def __init__(self) -> None:
        # A storage in it keeps the range mapped.
        self._ranges: dict[tuple[int, int], torch.UntypedStorage] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the ranges, if all their pages are here."""
        return sum(end - start for start, end in self._ranges)

    def note(self, folder: Path, storages: Iterable[torch.UntypedStorage]) -> None:
        """Takes care of the files of a folder that some storages are mapped from."""
        ranges = _mapped_from(folder)
        for storage in storages:
            address = storage.data_ptr()
            for start, end in ranges:
                if start <= address < end and address + storage.nbytes() <= end:
                    self._ranges[start, end] = storage

    def has_changed(self, storage: torch.UntypedStorage) -> None:
        """Leaves a file here that is written to in memory: what was written is not on disk."""
        if self._ranges and not storage.resizable():
            address = storage.data_ptr()
            for start, end in list(self._ranges):
                if start <= address < end:
                    del self._ranges[start, end]

    def drop(self) -> None:
        """Lets go of the pages, which are read again when they are needed."""
        for start, end in self._ranges:
            size = ctypes.c_size_t(end - start)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), size, _DONTNEED)


def _mapped_from(folder: Path) -> list[tuple[int, int]]:
    """Private ranges of files below a folder of which no page was written to."""
    if not _MAPS.exists():
        return []
    text, root = _MAPS.read_text(encoding='utf-8', errors='replace'), str(folder.resolve())
    heads = list(_HEAD.finditer(text))
    ranges = []
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        start, end, kind, name = head.groups()
        about = text[head.end() : None if after is None else after.start()]
        is_clean = re.search(r'^Anonymous: +0 kB', about, re.MULTILINE) is not None
        if name.startswith(f'{root}/') and kind.endswith('p') and is_clean:
            ranges.append((int(start, 16), int(end, 16)))
    return ranges
