"""Files and folders that are there whole, the old or the new one, whenever a process is killed.

What is new is written beside its place, under a name of its own. When its bytes are on the disk, it
takes the place by one exchange of names.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import uuid
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def name_beside(path: Path) -> Path:
    """A name ``.NAME.….tmp`` for what shall take the place `path`.

    No machine has asked for it before, so none that shares the disk remembers its absence.
    """
    return path.with_name(f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp')


def put(new: Path, path: Path, *, syncs: bool = True) -> None:
    """Renames `new`, a file or a folder beside `path`, to `path`; what was there is deleted.

    A process that is killed in between leaves the old or the new one at `path`. Only a folder on a
    file system that exchanges no names (NFS) is missing for a moment. With `syncs` that holds for a
    machine that loses power, too; it takes some milliseconds for every file.
    """
    for part in (*new.rglob('*'), new) if syncs else ():
        _sync(part)
    if not path.is_dir() or not new.is_dir():
        new.replace(path)
        if syncs:
            _sync(path.parent)
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
    if syncs:
        _sync(path.parent)
    shutil.rmtree(new, ignore_errors=True)


def remove(folder: Path) -> None:
    """Removes a folder, which is at no time half there under its own name."""
    shutil.rmtree(folder.rename(name_beside(folder)))


def discard(new: Path) -> None:
    """Removes what was begun and shall take no place; nothing to do if there is nothing."""
    if new.is_dir():
        shutil.rmtree(new, ignore_errors=True)
    else:
        new.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Waits until the bytes of a file, or the names in a folder, are on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:  # a folder that may not be read, or whose file system syncs none
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise


def _exchange(a: Path, b: Path) -> bool:
    """Gives two folders each other's name at once (Linux); False if that is not possible."""
    rename = getattr(ctypes.CDLL(None), 'renameat2', None) if sys.platform == 'linux' else None
    if rename is None:
        return False
    names = os.fsencode(a), os.fsencode(b)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
