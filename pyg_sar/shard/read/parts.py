"""Reads the files of one part, and checks them against META.json."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.format import file_names
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey
from pyg_sar.shard.format.meta import Meta, row_type
from pyg_sar.shard.format.tensor_file import load_tensors

Tensors = dict[str, Tensor]

_NODE_FILES = file_names.NODE_FEATS_FILE, file_names.NODE_ATTRS_FILE
_EDGE_FILES = file_names.EDGE_FEATS_FILE, file_names.EDGE_ATTRS_FILE
READ_FILES = (file_names.SAR_FILE, *_NODE_FILES, *_EDGE_FILES)
"""The files of a part that :func:`read_part` reads."""


@dataclass(frozen=True)
class Part:
    """What the files of one part hold, by type."""

    n_id: dict[NodeKey, Tensor]  # original ids of the own nodes
    index: dict[EdgeKey, Tensors]  # local ids, halo, boundary and blocks of every relation
    node_attrs: dict[NodeKey, Tensors]  # every node attribute, ``[num_nodes, ...]``
    edge_attrs: dict[EdgeKey, Tensors]  # every edge attribute, ``[num_edges, ...]``


def read_part(root: Path, part: int, meta: Meta) -> Part:
    """Reads the files a rank needs of one part, memory-mapped.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file does not hold what META.json says.
    """
    folder = file_names.part_dir(root, part)
    path = folder / file_names.SAR_FILE
    sar: dict[Any, Any] = load_tensors(path, dict, root=root)
    if not meta.is_hetero:
        sar = {'n_id': {None: sar.get('n_id')}, 'edges': {None: sar}}
    n_ids: dict[NodeKey, Any] = {key: _dict_in(path, sar, 'n_id').get(key) for key in meta.nodes}
    indices = {key: _dict_in(path, _dict_in(path, sar, 'edges'), key) for key in meta.edges}
    for node_key, node_info in meta.nodes.items():
        count = node_info.part_num_nodes[part]
        name = _of('n_id', node_key)
        _check(path, name, n_ids[node_key], count, torch.int64)
        _check_range(path, name, n_ids[node_key], 0, node_info.num_nodes)
    for edge_key, index in indices.items():
        _check_index(path, edge_key, index, part, meta)
    node_attrs, edge_attrs = {}, {}
    files = [load_tensors(folder / name, dict, root=root) for name in _NODE_FILES]
    for node_key, node_info in meta.nodes.items():
        count = node_info.part_num_nodes[part]
        node_attrs[node_key] = _attrs(folder, files, node_key, node_info.attrs, count, meta)
    files = [load_tensors(folder / name, dict, root=root) for name in _EDGE_FILES]
    for edge_key, edge_info in meta.edges.items():
        count = edge_info.part_num_edges[part]
        edge_attrs[edge_key] = _attrs(folder, files, edge_key, edge_info.attrs, count, meta)
    return Part(n_ids, indices, node_attrs, edge_attrs)


def _attrs(
    folder: Path,
    files: list[dict[Any, Any]],
    key: NodeKey | EdgeKey,
    names: dict[str, Any],
    count: int,
    meta: Meta,
) -> Tensors:
    if meta.is_hetero:
        files = [_dict_in(folder, {key: {}, **file}, key) for file in files]
    pyg, ours = files
    attrs = {**_dict_in(folder, {'feats': {}, **pyg}, 'feats'), **ours}
    for name in names:
        _check(folder, _of(name, key), attrs.get(name), count)
        found = row_type(attrs[name])
        _expect(found == names[name], folder, f"rows of {names[name]} in '{_of(name, key)}'", found)
    return {name: attrs[name] for name in names}


def _check_index(path: Path, key: EdgeKey, index: Tensors, part: int, meta: Meta) -> None:
    info = meta.edges[key]
    num_parts, num_edges = meta.num_parts, info.part_num_edges[part]
    src_counts = meta.nodes[info.src].part_num_nodes
    num_src, num_dst = src_counts[part], meta.nodes[info.dst].part_num_nodes[part]
    boundary_counts = [rows[part] for rows in info.halo_rows]
    expected = {
        'halo_ptr': (torch.int64, num_parts + 1),
        'halo_pos': (torch.int32, sum(info.halo_rows[part])),
        'boundary_ptr': (torch.int64, num_parts + 1),
        'boundary_pos': (torch.int32, sum(boundary_counts)),
        'block_ptr': (torch.int64, num_parts + 1),
        'src': (torch.int32, num_edges),
        'dst': (torch.int32, num_edges),
        'e_id': (torch.int64, num_edges),
    }
    for name, (dtype, size) in expected.items():
        _check(path, _of(name, key), index.get(name), size, dtype)
    _check_range(path, 'e_id', index['e_id'], 0, info.num_edges)
    for kind, counts in (
        ('halo', info.halo_rows[part]),
        ('boundary', boundary_counts),
        ('block', info.block_edges[part]),
    ):
        found, ptr = index[f'{kind}_ptr'].tolist(), [0, *accumulate(counts)]
        _expect(found == ptr, path, f"{ptr} for '{kind}_ptr'", found)
    for q in range(num_parts):
        start, end = (num_src + int(n) for n in index['halo_ptr'][q : q + 2])
        first, last = (0, num_src) if q == part else (start, end)
        edges = slice(*index['block_ptr'][q : q + 2].tolist())
        _check_range(path, 'src', index['src'][edges], first, last)
        dst = index['dst'][edges]
        _check_range(path, 'dst', dst, 0, num_dst)
        _expect(bool((dst.diff() >= 0).all()), path, f"ascending 'dst' in block {q}", 'others')
        for kind, num_rows in (('halo', src_counts[q]), ('boundary', num_src)):
            rows = rows_of(index, kind, q)
            _check_range(path, f'{kind}_pos', rows, 0, num_rows)
            # They are looked up by bisection.
            _expect(bool((rows.diff() > 0).all()), path, f"ascending '{kind}_pos'", 'others')


def rows_of(index: Tensors, kind: str, other: int) -> Tensor:
    """A part's halo rows owned by another part, or its boundary rows read by another."""
    start, end = index[f'{kind}_ptr'][other : other + 2].tolist()
    return index[f'{kind}_pos'][start:end]


def _of(name: str, key: NodeKey | EdgeKey) -> str:
    return name if key is None else f'{name} of {key}'


def _expect(holds: bool, path: Path, what: str, got: object) -> None:
    if not holds:
        raise ValueError(f"expected {what} in '{path}' (got {got})")


def _dict_in(path: Path, content: dict[Any, Any], key: Any) -> dict[Any, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"expected a dict '{key}' in '{path}' (got {type(value).__name__})")
    return value


def _check(path: Path, name: str, value: Any, size: int, dtype: torch.dtype | None = None) -> None:
    got: Any = type(value).__name__
    if isinstance(value, Tensor):
        got = f'{value.dtype} of shape {tuple(value.shape)}'
    has_rows = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == size
    _expect(has_rows, path, f"{size} rows of '{name}'", got)
    fits = dtype is None or (value.dtype == dtype and value.dim() == 1)
    _expect(fits, path, f"a vector of {dtype} as '{name}'", got)


def _check_range(path: Path, name: str, values: Tensor, start: int, end: int) -> None:
    if values.numel():
        low, high = (int(v) for v in torch.aminmax(values))
        is_inside = start <= low and high < end
        _expect(is_inside, path, f"ids in [{start}, {end}) as '{name}'", f'{low} to {high}')
