"""The folders of checkpoints, which rank 0 alone changes.

A checkpoint gets its name, ``epoch-000012``, after its files are on the disk. So whatever has such
a name is complete, wherever a run was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyg_sar.utils import durable

_NAME = re.compile(r'epoch-\d{6,}')
_LOCK = '.writing'


def complete(root: Path) -> list[Path]:
    """The complete checkpoints in `root`, oldest first; none if there is no such folder."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=_epoch_of)


def folder_of(root: Path, epoch: int) -> Path:
    """The folder of a complete checkpoint."""
    return root / f'epoch-{epoch:06d}'


@contextmanager
def begun(root: Path, epoch: int) -> Iterator[Path]:
    """A folder to write a checkpoint into; what killed runs left is removed.

    Nobody else writes to `root` meanwhile: raises RuntimeError, who does.
    """
    root.mkdir(parents=True, exist_ok=True)
    with durable.locked(root / _LOCK):
        existing = complete(root)
        if existing and epoch <= _epoch_of(existing[-1]):
            raise ValueError(
                f"expected an 'epoch' after {_epoch_of(existing[-1])}, the newest checkpoint in "
                f'{root} (got {epoch}): load that one first, or use another folder'
            )
        durable.remove_left(root, _NAME.pattern)
        with durable.workshop(folder_of(root, epoch)) as new:
            yield new


def publish(new: Path, folder: Path, *, keep: int) -> None:
    """Gives a written checkpoint its name, durably; then removes all but the `keep` newest ones."""
    durable.put(new, folder)
    for old in complete(folder.parent)[:-keep]:
        old.rename(new.parent / old.name)  # at no time half there under its own name


def _epoch_of(folder: Path) -> int:
    return int(folder.name.removeprefix('epoch-'))
