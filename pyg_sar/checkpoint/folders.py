"""The folders of checkpoints, which rank 0 alone changes.

A checkpoint is written into a folder ``.tmp-epoch-000012-...`` and gets its name, ``epoch-000012``,
by a rename, after its files are on the disk. So whatever has that name is complete, wherever a run
was killed.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

_NAME = re.compile(r'epoch-\d{6,}')
_TEMPORARY = '.tmp-epoch-'


def complete(root: Path) -> list[Path]:
    """The complete checkpoints in `root`, oldest first; none if there is no such folder."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=epoch_of)


def epoch_of(folder: Path) -> int:
    """The epoch of a checkpoint, by its name."""
    return int(folder.name.removeprefix('epoch-'))


def begin(root: Path, epoch: int) -> Path:
    """Makes the folder that a checkpoint is written into, and removes what killed runs left."""
    root.mkdir(parents=True, exist_ok=True)
    existing = complete(root)
    if existing and epoch <= epoch_of(existing[-1]):
        raise ValueError(
            f"expected an 'epoch' after {epoch_of(existing[-1])}, the newest checkpoint in {root} "
            f'(got {epoch}): load that one first, or use another folder'
        )
    for path in root.glob(f'{_TEMPORARY}*'):
        shutil.rmtree(path)
    # A name of its own: other machines have not yet asked for it, so none can remember its absence.
    folder = root / f'{_TEMPORARY}{epoch:06d}-{uuid.uuid4().hex[:12]}'
    folder.mkdir()
    return folder


def publish(folder: Path, *, keep: int) -> Path:
    """Gives a written checkpoint its name, durably; then removes all but the `keep` newest ones."""
    root = folder.parent
    number = folder.name.removeprefix(_TEMPORARY).split('-')[0]
    _sync(folder)
    published = folder.rename(root / f'epoch-{number}')
    _sync(root)
    for old in complete(root)[:-keep]:
        # Renamed first: a checkpoint that has lost some of its files must not look complete.
        doomed = old.rename(root / f'{_TEMPORARY}{epoch_of(old):06d}-old')
        shutil.rmtree(doomed)
    return published


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
