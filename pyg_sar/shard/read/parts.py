"""Reads the files of one part, and checks them against META.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.format import file_names
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey
from pyg_sar.shard.format.meta import Meta, row_type
from pyg_sar.shard.format.tensor_file import load_tensors

Tensors = dict[str, Tensor]

READ_FILES = tuple(name for name in file_names.PART_FILES if name != file_names.GRAPH_FILE)
"""The files of a part that :func:`read_part` reads."""


@dataclass(frozen=True)
class Part:
    """What the files of one part hold, by type.

    Attributes:
        n_id: Original ids of the own nodes.
        index: Local ids, halo, boundary and blocks of every relation.
        node_attrs: Every node attribute, ``[num_nodes, ...]``.
        edge_attrs: Every edge attribute, ``[num_edges, ...]``.
    """

    n_id: dict[NodeKey, Tensor]
    index: dict[EdgeKey, Tensors]
    node_attrs: dict[NodeKey, Tensors]
    edge_attrs: dict[EdgeKey, Tensors]


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
    node_files, edge_files = (
        [load_tensors(folder / name, dict, root=root) for name in names]
        for names in (
            (file_names.NODE_FEATS_FILE, file_names.NODE_ATTRS_FILE),
            (file_names.EDGE_FEATS_FILE, file_names.EDGE_ATTRS_FILE),
        )
    )
    node_attrs, edge_attrs = {}, {}
    for node_key, node_info in meta.nodes.items():
        count = node_info.part_num_nodes[part]
        node_attrs[node_key] = _attrs(folder, node_files, node_key, node_info.attrs, count, meta)
    for edge_key, edge_info in meta.edges.items():
        count = edge_info.part_num_edges[part]
        edge_attrs[edge_key] = _attrs(folder, edge_files, edge_key, edge_info.attrs, count, meta)
    return Part(n_ids, indices, node_attrs, edge_attrs)


def _attrs(
    folder: Path,
    files: list[dict[Any, Any]],
    key: NodeKey | EdgeKey,
    names: dict[str, Any],
    count: int,
    meta: Meta,
) -> Tensors:
    """The attributes of one type, from PyG's file and from ours."""
    if meta.is_hetero:
        files = [_dict_in(folder, {key: {}, **file}, key) for file in files]
    pyg, ours = files
    attrs = {**_dict_in(folder, {'feats': {}, **pyg}, 'feats'), **ours}
    for name in names:
        _check(folder, _of(name, key), attrs.get(name), count)
        if row_type(attrs[name]) != names[name]:
            raise ValueError(
                f"expected rows of {names[name]} in '{_of(name, key)}' of '{folder}' "
                f'(got {row_type(attrs[name])})'
            )
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
    _check_counts(path, 'halo_ptr', index, info.halo_rows[part])
    _check_counts(path, 'boundary_ptr', index, boundary_counts)
    _check_counts(path, 'block_ptr', index, info.block_edges[part])
    for q in range(num_parts):
        start, end = (num_src + int(n) for n in index['halo_ptr'][q : q + 2])
        first, last = (0, num_src) if q == part else (start, end)
        edges = slice(*index['block_ptr'][q : q + 2].tolist())
        _check_range(path, 'src', index['src'][edges], first, last)
        _check_range(path, 'dst', index['dst'][edges], 0, num_dst)
        if bool((index['dst'][edges].diff() < 0).any()):
            raise ValueError(f"expected ascending 'dst' in block {q} of '{path}' (got others)")
        for kind, num_rows in (('halo', src_counts[q]), ('boundary', num_src)):
            rows = rows_of(index, kind, q)
            _check_range(path, f'{kind}_pos', rows, 0, num_rows)
            if bool((rows.diff() <= 0).any()):  # they are looked up by bisection
                raise ValueError(f"expected ascending '{kind}_pos' in '{path}' (got others)")


def rows_of(index: Tensors, kind: str, other: int) -> Tensor:
    """A part's halo rows owned by another part, or its boundary rows read by another."""
    start, end = index[f'{kind}_ptr'][other : other + 2].tolist()
    return index[f'{kind}_pos'][start:end]


def _of(name: str, key: NodeKey | EdgeKey) -> str:
    return name if key is None else f'{name} of {key}'


def _dict_in(path: Path, content: dict[Any, Any], key: Any) -> dict[Any, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"expected a dict '{key}' in '{path}' (got {type(value).__name__})")
    return value


def _check(path: Path, name: str, value: Any, size: int, dtype: torch.dtype | None = None) -> None:
    if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != size:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"expected {size} rows in '{name}' of '{path}' (got {got})")
    if dtype is not None and (value.dtype != dtype or value.dim() != 1):
        raise ValueError(
            f"expected a vector of {dtype} in '{name}' of '{path}' "
            f'(got {value.dtype} in {value.dim()} dimensions)'
        )


def _check_counts(path: Path, name: str, sar: Tensors, counts: list[int]) -> None:
    ptr = torch.tensor([0, *counts]).cumsum(0)
    if not torch.equal(sar[name], ptr):
        raise ValueError(
            f"expected {ptr.tolist()} for '{name}' in '{path}' (got {sar[name].tolist()})"
        )


def _check_range(path: Path, name: str, values: Tensor, start: int, end: int) -> None:
    if values.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(values))
    if low < start or high >= end:
        raise ValueError(
            f"expected ids in [{start}, {end}) in '{name}' of '{path}' (got {low} to {high})"
        )
