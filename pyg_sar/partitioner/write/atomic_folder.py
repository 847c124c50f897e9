"""A folder that appears complete or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyg_sar.ground.durable import discard, name_beside, put
from pyg_sar.shard.format import file_names
from pyg_sar.shard.format.checksums import folder_files
from pyg_sar.shard.format.meta import listed_files


def target_folder(root: str | os.PathLike[str], *, force: bool) -> Path:
    """`root` without symbolic links, so that its parent is on the same file system.

    It may not exist yet, or be empty, or with `force` hold an earlier partition. Raises ValueError
    if `root` holds anything and `force` is not given, holds anything but a partition, or cannot be
    renamed.
    """
    path = Path(os.path.realpath(root))
    if not path.exists():
        return path
    if not path.is_dir():
        raise ValueError(f"'root' must be a folder (got the file '{root}')")
    if path.is_mount():
        raise ValueError(f"'root' must not be a mount point, but a folder in one (got '{root}')")
    if not any(path.iterdir()):
        return path
    if not force:
        raise ValueError(
            f"'root' must not exist yet or be empty (got '{root}', which is not empty; "
            'pass force=True or --force to replace the partition in it)'
        )
    if not (path / file_names.META_FILE).is_file():
        raise ValueError(
            f"expected a partition to replace in '{root}' (got a folder without "
            f'{file_names.META_FILE}; delete it by hand if nothing in it is needed)'
        )
    written = listed_files(path)
    others = [name for name in folder_files(path) if name not in written]
    if others:
        raise ValueError(
            f"expected a partition and nothing else in '{root}' (got {len(others)} more files, "
            f"such as '{others[0]}'): move them out, they would be deleted"
        )
    return path


def existing_parent(root: Path) -> Path:
    """The innermost folder around `root` that exists: on the file system that `root` will be on."""
    return next(parent for parent in root.parents if parent.exists())


@contextmanager
def replace_folder(root: Path) -> Iterator[Path]:
    """Gives a temporary folder beside `root` that takes its place when the block ends well.

    On any exception, KeyboardInterrupt too, the temporary folder is removed and `root` is as it
    was. A process that is killed leaves its temporary folder, which nothing reads; the next one
    that writes to `root` removes it.
    """
    # Beside the target, since only a rename within one file system is atomic.
    new = name_beside(root)
    created = [parent for parent in new.parents if not parent.exists()]
    try:
        for left in _siblings(root, 'tmp'):
            with _lock(left) as is_ours:
                if is_ours:  # Its process has ended: the system has given up its lock.
                    shutil.rmtree(left, ignore_errors=True)
        new.mkdir(parents=True)
        with _lock(new):
            yield new
            put(new, root, syncs=False)  # checksums tell at loading whether it is whole
        for left in _siblings(root, 'old'):  # of one that was killed without exchanging names
            shutil.rmtree(left, ignore_errors=True)
    except BaseException:
        discard(new)
        for parent in created:
            with suppress(OSError):
                parent.rmdir()
        raise


def _siblings(root: Path, suffix: str) -> list[Path]:
    """Folders with this suffix beside `root`, of runs that wrote to it."""
    return list(root.parent.glob(f'.{glob.escape(root.name)}.*.{suffix}'))


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether the folder could be locked, for as long as the block lasts."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    is_ours = False
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        yield is_ours
    finally:
        os.close(handle)
