"""A folder that appears complete or not at all."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from pyg_sar.shard import format as file_names
from pyg_sar.shard.meta import listed_files
from pyg_sar.utils.durable import put, remove_left, workshop

Content = dict[str, tuple[int, ...]]
"""Of every file and folder in a folder what tells it from a later one, by its relative path."""


def target_folder(root: str | os.PathLike[str], *, force: bool) -> tuple[Path, Content]:
    """`root` without symbolic links, so that its parent is on the same file system; what is in it.

    Raises ValueError unless it does not exist, is empty, or with `force` holds a partition alone.
    """
    path = Path(os.path.realpath(root))
    if not path.exists():
        return path, {}
    if not path.is_dir():
        raise ValueError(f"'root' must be a folder (got the file '{root}')")
    if path.is_mount():
        raise ValueError(f"'root' must not be a mount point, but a folder in one (got '{root}')")
    if not any(path.iterdir()):
        return path, {}
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
    content = _content(path)
    written = {file_names.META_FILE, *listed_files(path)}
    own = written | {str(folder) for name in written for folder in PurePosixPath(name).parents}
    others = [name for name in content if name not in own]
    if others:
        raise ValueError(
            f"expected a partition and nothing else in '{root}' (got {len(others)} more files and "
            f"folders, such as '{others[-1]}'): move them out, they would be deleted"
        )
    return path, content


def _content(root: Path) -> Content:
    """All that lies in a folder; of anything else, itself."""
    content: Content = {}
    is_folder = root.is_dir() and not root.is_symlink()
    for path in sorted(root.rglob('*')) if is_folder else [root]:
        with suppress(FileNotFoundError):
            of, name = path.lstat(), path.relative_to(root).as_posix()
            is_file = not stat.S_ISDIR(of.st_mode)
            content[name] = (of.st_mode, of.st_size, of.st_mtime_ns) if is_file else ()
    return content


def existing_parent(root: Path) -> Path:
    """The innermost folder around `root` that exists: on the file system that `root` will be on."""
    return next(parent for parent in root.parents if parent.exists())


@contextmanager
def replace_folder(root: Path, before: Content | None = None) -> Iterator[Path]:
    """Gives a temporary folder beside `root` that takes its place when the block ends well.

    On any exception the temporary folder is removed and `root` is as it was. What a killed process
    leaves the next one that writes to `root` removes. If at the end `root` is not as it was
    `before`, by default now, it stays, and a ValueError tells the name of the new folder.
    """
    before = _content(root) if before is None else before
    created = [parent for parent in root.parents if not parent.exists()]
    try:
        with workshop(root) as new:
            remove_left(root.parent, re.escape(root.name))
            yield new
            _put(new, root, before)
    except BaseException:
        for parent in created:
            with suppress(OSError):
                parent.rmdir()
        raise


def _put(new: Path, root: Path, before: Content) -> None:
    """Exchanges the folders, unless something has come to `root` or changed there meanwhile."""

    def came(folder: Path) -> list[str]:
        return [name for name, state in _content(folder).items() if before.get(name) != state]

    changed = came(root)
    if not changed:
        put(new, root, syncs=bool(before))  # of a first one checksums tell whether it is whole
        if changed := came(new):  # written a moment ago
            put(new, root)
    if changed:
        kept = root.with_name(new.parent.stem.removeprefix('.'))
        put(new, kept)
        raise ValueError(
            f"expected '{root}' as it was when the cut began (got '{changed[-1]}', written there "
            f"meanwhile): nothing was replaced, and the new partition is in '{kept}'"
        )
