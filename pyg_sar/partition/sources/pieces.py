"""Text files read a bounded piece at a time, compressed or not."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pyg_sar.utils.scoped import Scoped

is_read: Scoped[Callable[[float], None]] = Scoped(lambda _: None)
"""What readers tell which share of a source they have read, from 0 to 1."""

PIECE = 1 << 20
"""Bytes per piece."""


def open_plain(path: Path) -> IO[bytes]:
    """Opens a file, .gz and .bz2 unpacked."""
    openers: dict[str, Any] = {'.gz': gzip.open, '.bz2': bz2.open}
    file: IO[bytes] = openers.get(path.suffix, open)(path, 'rb')
    return file


def whole_lines(file: IO[bytes], longest: int, path: Path, *, line: int) -> Iterator[bytes]:
    """Pieces of a file that end with a line, of at most `longest` bytes; the first is `line`."""
    rest, size = b'', max(path.stat().st_size, 1)
    while piece := file.read(PIECE):
        if not isinstance(file, bz2.BZ2File):  # which does not tell how much it has read
            is_read.value(getattr(file, 'fileobj', file).tell() / size)
        rest += piece
        end = rest.rfind(b'\n') + 1
        if len(rest) - end > longest:
            line += rest.count(b'\n')
            raise ValueError(
                f"expected at most {longest} bytes in line {line} of '{path}' (got more)"
            )
        if end:
            yield rest[:end]
            line += rest.count(b'\n', 0, end)
            rest = rest[end:]
    if rest:
        yield rest + b'\n'
