"""What lies in a partition folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def meta_of(root: Path) -> Any:
    """Our part of META.json."""
    return json.loads((root / 'META.json').read_text())['pyg_sar']


def load_part(root: Path, part: int, file: str = 'sar.pt') -> Any:
    """A file of one part."""
    return torch.load(root / f'part_{part}' / file, weights_only=True)


def load_shard_files(root: Path, part: int) -> dict[str, Any]:
    """Local ids, halo, boundary and blocks of a homogeneous part, its n_id and its e_id."""
    return {
        **load_part(root, part),
        'n_id': load_part(root, part, 'node_feats.pt')['global_id'],
        'e_id': load_part(root, part, 'graph.pt')['edge_id'],
    }


def tree(folder: Path) -> dict[str, bytes]:
    """All files by their path."""
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def is_in_file(values: torch.Tensor) -> bool:
    """Whether the numbers of a tensor lie in a map of a file, whether or not it has a name."""
    for line in Path('/proc/self/maps').read_text().splitlines():
        bounds, _, _, _, inode, *_ = line.split()
        start, end = (int(bound, 16) for bound in bounds.split('-'))
        if start <= values.data_ptr() < end:
            return inode != '0'
    return False


def change_part(root: Path, file: str, statement: str, part: int = 1) -> None:
    """Executes a statement whose variables are what a file of one part has, by its names."""
    content = load_part(root, part, file)
    exec(statement, {'torch': torch}, content)
    torch.save(content, root / f'part_{part}' / file)
