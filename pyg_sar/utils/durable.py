"""Files and folders that are there whole, the old or the new one, whenever a process is killed.

What is new is written beside its place, under a name of its own. When its bytes are on the disk, it
takes the place by one exchange of names.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from socket import gethostname

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_MARKER = 'made_by_pyg_sar'
"""A file in every folder of :func:`workshop`, and its lock."""


def name_beside(path: Path) -> Path:
    """A name ``.NAME.….tmp`` for what shall take the place `path`.

    No machine has asked for it before, so none that shares the disk remembers its absence.
    """
    return path.with_name(f'.{path.name}.{uuid.uuid4().hex[:12]}.tmp')


@contextmanager
def locked(path: Path, *, make: bool = True) -> Iterator[None]:
    """Holds a file, made if need be, as a lock while the block lasts; then it is removed.

    The system gives it up when the process ends in any way. Where no file can be locked, one that
    is made holds nobody up. Raises RuntimeError if another one holds it: who, and since when.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if make else 0)
    with ExitStack() as stack:
        while True:
            file = os.open(path, flags, 0o666)
            stack.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.read(file, 200).decode(errors='replace') or 'a process'
                raise RuntimeError(
                    f"'{path.parent}' must have one writer at a time (got two: {who!r} writes "
                    f"there): wait for its end, or remove '{path}' if that machine is gone"
                ) from None
            except OSError:
                if not make:
                    raise
            with suppress(FileNotFoundError):  # who held it has removed it
                if os.path.samestat(os.fstat(file), path.stat()):
                    break
        stack.callback(path.unlink, missing_ok=True)
        if make:
            since = datetime.now().astimezone().isoformat(' ', 'seconds')
            os.truncate(file, 0)
            os.write(file, f'process {os.getpid()} on {gethostname()} since {since}'.encode())
            os.fsync(file)  # other machines may read it
        yield


@contextmanager
def workshop(path: Path) -> Iterator[Path]:
    """A new folder, in one beside `path`, for what shall take that place; both go at the end."""
    with ExitStack() as stack:
        while True:
            folder = name_beside(path)
            folder.mkdir(parents=True)
            with suppress(FileNotFoundError, RuntimeError):  # another process removes it as empty
                stack.enter_context(locked(folder / _MARKER))
                break
        stack.callback(_remove, folder)
        new = folder / 'new.tmp'
        new.mkdir()
        yield new


def remove_left(folder: Path, names: str) -> None:
    """Removes what killed processes left of a :func:`workshop` for a name that `names` matches.

    Only folders of that form go that are empty, or have the marker, which no process holds.
    """
    form = re.compile(rf'\.(?:{names})\.[0-9a-f]{{12}}\.tmp')
    for left in folder.iterdir():
        if form.fullmatch(left.name) and not left.is_symlink():
            with suppress(OSError):
                left.rmdir()
            with suppress(OSError, RuntimeError), locked(left / _MARKER, make=False):
                if not any(left.glob('*.old')):  # which may be the only copy
                    _remove(left)


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _MARKER:  # which goes last
            discard(path)
    shutil.rmtree(folder, ignore_errors=True)


def put(new: Path, path: Path, *, syncs: bool = True) -> None:
    """Gives `new`, a file or a folder, the name `path`; a folder that was there gets that of `new`.

    A process that is killed in between leaves the old or the new one at `path`. Only a folder on a
    file system that exchanges no names (NFS) is missing for a moment. With `syncs` that holds for a
    machine that loses power, too; it takes some milliseconds for every file.
    """
    for part in (*new.rglob('*'), new) if syncs else ():
        _sync(part)
    if not path.is_dir() or not new.is_dir():
        new.replace(path)
    elif not _exchange(new, path):
        old = new.with_suffix('.old')
        path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            old.rename(path)
            raise
        old.rename(new)
    for folder in (new.parent, path.parent) if syncs else ():
        _sync(folder)


def discard(new: Path) -> None:
    """Removes what was begun and shall take no place; nothing to do if there is nothing."""
    if new.is_dir() and not new.is_symlink():
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
