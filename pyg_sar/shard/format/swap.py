"""Replaces a file or folder on disk so that the old or the new one is there at any time."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def swap_in(new: Path, path: Path) -> None:
    """Renames `new`, a file or a folder beside `path`, to `path`; what was there is deleted.

    A process that is killed in between leaves the old or the new one at `path`. Only a folder on a
    file system that exchanges no names (NFS) is missing for a moment.
    """
    if not path.is_dir() or not new.is_dir():
        new.replace(path)
        return
    if not _exchange(new, path):
        old = new.with_suffix('.old')
        path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            old.rename(path)
            raise
        new = old
    shutil.rmtree(new, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Gives two folders each other's name at once (Linux); False if that is not possible."""
    rename = getattr(ctypes.CDLL(None), 'renameat2', None) if sys.platform == 'linux' else None
    if rename is None:
        return False
    names = os.fsencode(a), os.fsencode(b)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
