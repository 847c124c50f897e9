"""The on-disk format: names of the files of a partition folder, and its META.json.

The layout is that of ``torch_geometric.distributed.Partitioner``, so PyG's own stores read it;
what SAR needs beyond it lies in files of our own (``sar.pt``, ``node_attrs.pt``,
``edge_attrs.pt``) beside PyG's, and under the key ``"pyg_sar"`` of META.json.

This module knows names and numbers only: the partitioner writes with it, the loader reads with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1

META_FILE = 'META.json'
NODE_MAP_FILE = 'node_map.pt'
EDGE_MAP_FILE = 'edge_map.pt'

GRAPH_FILE = 'graph.pt'
NODE_FEATS_FILE = 'node_feats.pt'
EDGE_FEATS_FILE = 'edge_feats.pt'
SAR_FILE = 'sar.pt'
NODE_ATTRS_FILE = 'node_attrs.pt'
EDGE_ATTRS_FILE = 'edge_attrs.pt'

PART_FILES = (
    GRAPH_FILE,
    NODE_FEATS_FILE,
    EDGE_FEATS_FILE,
    SAR_FILE,
    NODE_ATTRS_FILE,
    EDGE_ATTRS_FILE,
)
"""The files of every part folder, in the order they are written."""

_REQUIRED_KEYS = {
    'fingerprint': str,
    'num_nodes': int,
    'num_edges': int,
    'part_num_nodes': list,
    'part_num_edges': list,
    'halo_rows': list,
    'block_edges': list,
    'node_attrs': dict,
    'edge_attrs': dict,
    'graph_attrs': dict,
}


def part_dir(root: str | Path, part: int) -> Path:
    """The folder of part `part`, named as PyG's partitioner names it."""
    return Path(root) / f'part_{part}'


def write_meta(root: str | Path, meta: dict[str, Any]) -> None:
    """Writes META.json; `meta` holds PyG's keys and ours under ``"pyg_sar"``."""
    text = json.dumps(meta, indent=1, sort_keys=True)
    (Path(root) / META_FILE).write_text(text + '\n', encoding='utf-8')


def read_meta(root: str | Path) -> dict[str, Any]:
    """Reads and checks META.json.

    Args:
        root: The partition folder.

    Returns:
        The whole META.json; its ``"pyg_sar"`` entry is complete and consistent with
        ``num_parts``.

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If META.json is not one that this version of pyg_sar reads.
    """
    root = Path(root)
    path = root / META_FILE
    if not root.is_dir():
        raise FileNotFoundError(f"expected a partition folder at '{root}' (got no folder)")
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a complete partition folder at '{root}' (got one without {META_FILE}: "
            'it was not written by pyg_sar.partition, or only in part)'
        )
    try:
        meta = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(f"expected JSON in '{path}' (got {error})") from error
    if not isinstance(meta, dict) or not isinstance(meta.get('pyg_sar'), dict):
        raise ValueError(
            f"expected the key 'pyg_sar' in '{path}' (got a folder of another program; "
            'partition the graph with `python -m pyg_sar.partition`)'
        )
    sar = meta['pyg_sar']
    if sar.get('format_version') != FORMAT_VERSION:
        raise ValueError(
            f"expected format version {FORMAT_VERSION} in '{path}' "
            f'(got {sar.get("format_version")!r}); partition the graph again'
        )
    num_parts = meta.get('num_parts')
    if type(num_parts) is not int or num_parts < 1:
        raise ValueError(f"expected a positive int 'num_parts' in '{path}' (got {num_parts!r})")
    for key, kind in _REQUIRED_KEYS.items():
        if not isinstance(sar.get(key), kind):
            raise ValueError(
                f"expected {kind.__name__} for '{key}' in '{path}' (got {sar.get(key)!r})"
            )
    for key in ('part_num_nodes', 'part_num_edges', 'halo_rows', 'block_edges'):
        if len(sar[key]) != num_parts:
            raise ValueError(
                f"expected {num_parts} entries in '{key}' of '{path}' (got {len(sar[key])})"
            )
    for key in ('part_num_nodes', 'part_num_edges'):
        _check_ints(path, key, sar[key])
    for key in ('halo_rows', 'block_edges'):
        for row in sar[key]:
            if not isinstance(row, list) or len(row) != num_parts:
                raise ValueError(
                    f"expected rows of {num_parts} counts for '{key}' in '{path}' (got {row!r})"
                )
            _check_ints(path, key, row)
    return meta


def _check_ints(path: Path, key: str, values: list[Any]) -> None:
    if any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"expected counts for '{key}' in '{path}' (got {values!r})")
