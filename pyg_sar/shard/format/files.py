"""Opens only a folder's own ordinary files, as a stranger may have made the folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def own_file(root: str | Path, path: str | Path) -> Path:
    """`path`, if it is an ordinary file in the folder `root` or below it.

    Symbolic links are followed: `root` may be one, and those inside may not lead out of it. Pipes
    and devices are not opened: reading them may never end.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it lies outside, or is no ordinary file.
    """
    folder, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([folder, real]) != folder:
        raise ValueError(f"expected a file inside the folder '{root}' (got '{path}' -> '{real}')")
    return ordinary_file(path)


def ordinary_file(path: str | Path) -> Path:
    """`path`, if it is an ordinary file: no folder, pipe or device.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is anything else.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"expected a file '{path}' (got no such file)") from error
    except (OSError, ValueError) as error:  # a loop of links, a name with a zero byte
        raise ValueError(f"expected an ordinary file '{path}' (got {error})") from error
    if not stat.S_ISREG(mode):
        raise ValueError(f"expected an ordinary file '{path}' (got a folder, pipe or device)")
    return Path(path)
