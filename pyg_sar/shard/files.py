"""Opens only a folder's own ordinary files, as a stranger may have made the folder."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from pyg_sar.shard.format import META_FILE

_MOST_BYTES = 1 << 28
"""Of META.json: as much as some 4,000 parts need."""


def own_file(root: str | Path, path: str | Path) -> Path:
    """`path`, if it is an ordinary file in the folder `root` or below it.

    Symbolic links are followed: `root` may be one, and those inside may not lead out of it. Pipes
    and devices are not opened: reading them may never end. Raises FileNotFoundError if there is
    nothing, ValueError if it lies outside, or is no ordinary file.
    """
    folder, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([folder, real]) != folder:
        raise ValueError(f"expected a file inside the folder '{root}' (got '{path}' -> '{real}')")
    return ordinary_file(path)


def ordinary_file(path: str | Path) -> Path:
    """`path`, if it is an ordinary file: no folder, pipe or device."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"expected a file '{path}' (got no such file)") from None
    except (OSError, ValueError) as error:  # a loop of links, a name with a zero byte
        raise ValueError(f"expected an ordinary file '{path}' (got {error})") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"expected an ordinary file '{path}' (got a folder, pipe or device)")
    return Path(path)


def is_of_system(error: Exception) -> bool:
    """Whether an error of reading a file tells of the system, and nothing of the file's bytes."""
    if isinstance(error, OSError):  # of damaged bytes libraries seek to no place at all
        return error.errno not in (None, errno.EINVAL)
    return isinstance(error, (Warning, MemoryError)) or "can't allocate memory" in str(error)


def read_json(root: str | Path) -> Any:
    """All that META.json holds, of whatever program it is."""
    path = Path(root) / META_FILE
    if not Path(root).is_dir():
        raise FileNotFoundError(
            f"expected a partition folder at '{root}' (got no folder): python -m pyg_sar.partition "
            'makes one'
        )
    try:
        own_file(root, path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"expected a complete partition folder at '{root}' (got one without {META_FILE}: "
            'it was not written by pyg_sar.partition, or only in part): '
            'python -m pyg_sar.partition makes one'
        ) from None
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"expected less than {_MOST_BYTES} bytes in '{path}' (got more)")
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in '{path}' (got {error})") from error
