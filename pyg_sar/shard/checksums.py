"""SHA-256 of the files of a partition folder, which META.json lists beside everything else."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pyg_sar.shard.format import META_FILE

_CHUNK = 1 << 20


def file_checksum(path: str | Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open('rb') as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def folder_files(root: str | Path) -> list[str]:
    """The paths of all files below `root` but META.json, relative to it, in order."""
    root = Path(root)
    found = [p.relative_to(root).as_posix() for p in root.rglob('*') if p.is_file()]
    return sorted(name for name in found if name != META_FILE)


def folder_checksums(root: str | Path) -> dict[str, str]:
    """The checksum of every file of :func:`folder_files`, by its relative path."""
    return {name: file_checksum(Path(root) / name) for name in folder_files(root)}
