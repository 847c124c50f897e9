"""Reads the files of one part, and checks them against META.json."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard import format as file_names
from pyg_sar.shard.files import load_tensors
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.shard.meta import Meta, row_type

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """The content of the files of one part, by type."""

    n_id: dict[NodeKey, Tensor]  # original ids of the own nodes
    index: dict[EdgeKey, Tensors]  # local ids, halo, boundary, blocks and e_id of every relation
    node_attrs: dict[NodeKey, Tensors]  # every node attribute, ``[num_nodes, ...]``
    edge_attrs: dict[EdgeKey, Tensors]  # every edge attribute, ``[num_edges, ...]``


def read_part(root: Path, part: int, meta: Meta) -> Part:
    """Reads the files of one part, mapped; a ValueError tells where META.json says otherwise."""
    folder = file_names.part_dir(root, part)
    graph, node_feats, edge_feats, sar = (
        (folder / name, load_tensors(folder / name, dict, root=root))
        for name in file_names.PART_FILES
    )
    n_id, index, node_attrs, edge_attrs = {}, {}, {}, {}
    for node_key, nodes in meta.nodes.items():
        count = nodes.part_num_nodes[part]
        name, feats = _of('global_id', node_key), _of_type(node_feats, node_key)
        ids: Any = feats.get('global_id')
        if not count and node_key is not None:  # left out, as PyG's stores cannot read it
            ids = torch.empty(0, dtype=torch.int64)
        _check(node_feats[0], name, ids, count, torch.int64)
        _check_range(node_feats[0], name, ids, 0, nodes.num_nodes)
        n_id[node_key] = ids
        node_attrs[node_key] = _attrs(node_feats[0], feats, node_key, nodes.attrs, count)
    for edge_key, edges in meta.edges.items():
        count = edges.part_num_edges[part]
        name = _of('edge_id', edge_key)
        e_id: Any = _of_type(graph, edge_key).get('edge_id')
        _check(graph[0], name, e_id, count, torch.int64)
        _check_range(graph[0], name, e_id, 0, edges.num_edges)
        index[edge_key] = {**_of_type(sar, edge_key), 'e_id': e_id}
        _check_index(sar[0], edge_key, index[edge_key], part, meta)
        feats = _of_type(edge_feats, edge_key)
        edge_attrs[edge_key] = _attrs(edge_feats[0], feats, edge_key, edges.attrs, count)
    return Part(n_id, index, node_attrs, edge_attrs)


def _of_type(file: tuple[Path, dict[Any, Any]], key: NodeKey | EdgeKey) -> dict[Any, Any]:
    """The content of a file for a type; nothing if it leaves the type out."""
    path, content = file
    return content if key is None else _dict_in(path, {key: {}, **content}, key)


def _attrs(
    path: Path, feats: dict[str, Any], key: NodeKey | EdgeKey, names: dict[str, Any], count: int
) -> Tensors:
    feats = {'feats': {}, 'times': {}, **feats}
    rows = _dict_in(path, feats, 'feats') | _dict_in(path, feats, 'times')
    for name, expected in names.items():
        if not count and key is not None:
            rows.setdefault(name, _no_rows(path, name, expected))
        _check(path, _of(name, key), rows.get(name), count)
        actual = row_type(rows[name])
        _expect(actual == expected, path, f"rows of {expected} in '{_of(name, key)}'", actual)
    return {name: rows[name] for name in names}


def _no_rows(path: Path, name: str, row: dict[str, Any]) -> Tensor:
    """No rows of a type that META.json describes."""
    try:
        return torch.empty((0, *row['shape']), dtype=getattr(torch, row['dtype']))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(f"expected a shape of '{name}' in '{path}' (got {error})") from error


def _check_index(path: Path, key: EdgeKey, index: Tensors, part: int, meta: Meta) -> None:
    info = meta.edges[key]
    num_parts, num_edges = meta.num_parts, info.part_num_edges[part]
    src_counts = meta.nodes[info.src].part_num_nodes
    num_src, num_dst = src_counts[part], meta.nodes[info.dst].part_num_nodes[part]
    counts = {
        'halo': info.halo_rows[part],
        'boundary': [rows[part] for rows in info.halo_rows],
        'block': info.block_edges[part],
    }
    for kind, of_kind in counts.items():
        ptr: Any = index.get(f'{kind}_ptr')
        _check(path, _of(f'{kind}_ptr', key), ptr, num_parts + 1, torch.int64)
        actual, expected = ptr.tolist(), [0, *accumulate(of_kind)]
        _expect(actual == expected, path, f"{expected} for '{kind}_ptr'", actual)
    rows = {f'{kind}_pos': sum(counts[kind]) for kind in ('halo', 'boundary')}
    for name, size in {**rows, 'src': num_edges, 'dst': num_edges}.items():
        _check(path, _of(name, key), index.get(name), size, torch.int32)
    for q in range(num_parts):
        start, end = (num_src + int(n) for n in index['halo_ptr'][q : q + 2])
        first, last = (0, num_src) if q == part else (start, end)
        edges = slice(*index['block_ptr'][q : q + 2].tolist())
        _check_range(path, 'src', index['src'][edges], first, last)
        dst = index['dst'][edges]
        _check_range(path, 'dst', dst, 0, num_dst)
        _expect(bool((dst.diff() >= 0).all()), path, f"ascending 'dst' in block {q}", 'others')
        for kind, num_rows in (('halo', src_counts[q]), ('boundary', num_src)):
            of_part = rows_of(index, kind, q)
            _check_range(path, f'{kind}_pos', of_part, 0, num_rows)
            # They are looked up by bisection.
            _expect(bool((of_part.diff() > 0).all()), path, f"ascending '{kind}_pos'", 'others')


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
