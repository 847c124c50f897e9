"""SHA-256 of the files of a partition folder, which META.json lists.

A folder's structure is checked before its checksums, as errors of structure say more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pyg_sar.shard.files import ordinary_file, own_file
from pyg_sar.shard.format import META_FILE
from pyg_sar.shard.meta import Meta

_CHUNK = 1 << 20


def file_checksum(path: str | Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with ordinary_file(path).open('rb') as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def folder_files(root: str | Path) -> list[str]:
    """The paths of all files below `root` but META.json, relative to it, in order."""
    root = Path(root)
    names = (p.relative_to(root).as_posix() for p in root.rglob('*') if not p.is_dir())
    return sorted(name for name in names if name != META_FILE)


def folder_checksums(root: str | Path) -> dict[str, str]:
    """The checksum of every file of :func:`folder_files`, by its relative path."""
    return {name: file_checksum(Path(root) / name) for name in folder_files(root)}


def check_files(root: Path, meta: Meta, names: Iterable[str]) -> None:
    """Compares META.json, and files that it lists by their paths, with their checksums."""
    if not meta.is_unchanged:
        raise ValueError(f"expected '{root / META_FILE}' as it was written (got another checksum)")
    for name in names:
        path = own_file(root, root / name)
        if name in meta.checksums and file_checksum(path) != meta.checksums[name]:
            raise ValueError(f"expected '{path}' as it was written (got another checksum)")
