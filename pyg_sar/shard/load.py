"""Reads a rank's own parts from a partition folder."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.shard import format
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.shard import Shard, Step

Tensors = dict[str, Tensor]


def read_shard(root: str | Path, rank: int, world_size: int) -> Data:
    """Reads the parts of one rank into a PyG ``Data``; see :func:`pyg_sar.load_shard`.

    Args:
        root: The partition folder.
        rank: Which rank's parts.
        world_size: Number of ranks; divides the number of parts.

    Raises:
        FileNotFoundError: If the folder or a file of an own part is missing.
        ValueError: If `world_size` does not divide the number of parts, or a file does not hold
            what META.json says.
    """
    root = Path(root)
    meta = format.read_meta(root)
    num_parts = meta['num_parts']
    if num_parts % world_size:
        raise ValueError(
            f"'num_parts' must be a multiple of the world size (got {num_parts} parts in '{root}' "
            f'and {world_size} ranks)'
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"'rank' must lie in [0, {world_size}) (got {rank})")
    per_rank = num_parts // world_size
    own = range(rank * per_rank, (rank + 1) * per_rank)
    parts = [_read_part(root, part, meta) for part in own]
    shard, edge_index, perm = _join([p['sar'] for p in parts], meta, root, rank, world_size)
    e_id = _cat([p['sar']['e_id'] for p in parts])
    shard = replace(shard, e_id=e_id if perm is None else e_id[perm])

    data = Data(edge_index=ShardEdgeIndex.wrap(edge_index, shard, is_whole=True))
    node_attrs = [{**p['node_feats'].get('feats', {}), **p['node_attrs']} for p in parts]
    edge_attrs = [{**p['edge_feats'].get('feats', {}), **p['edge_attrs']} for p in parts]
    for name in meta['pyg_sar']['node_attrs']:
        data[name] = _cat([attrs[name] for attrs in node_attrs])
    for name in meta['pyg_sar']['edge_attrs']:
        values = _cat([attrs[name] for attrs in edge_attrs])
        data[name] = values if perm is None else values[perm]
    data.n_id = _cat([p['sar']['n_id'] for p in parts])
    data.e_id = shard.e_id
    data.num_nodes = shard.num_own
    for name, value in meta['pyg_sar']['graph_attrs'].items():
        data[name] = value
    return data


def _read_part(root: Path, part: int, meta: dict[str, Any]) -> dict[str, Any]:
    """The files a rank needs of one part, checked against META.json."""
    folder = format.part_dir(root, part)
    files = {
        'sar': format.SAR_FILE,
        'node_feats': format.NODE_FEATS_FILE,
        'edge_feats': format.EDGE_FEATS_FILE,
        'node_attrs': format.NODE_ATTRS_FILE,
        'edge_attrs': format.EDGE_ATTRS_FILE,
    }
    out = {key: _load(folder / name) for key, name in files.items()}
    sar, info = out['sar'], meta['pyg_sar']
    num_parts, num_nodes = meta['num_parts'], info['part_num_nodes'][part]
    num_edges = info['part_num_edges'][part]
    num_halo = sum(info['halo_rows'][part])
    num_boundary = sum(rows[part] for rows in info['halo_rows'])
    expected = {
        'n_id': (torch.int64, num_nodes),
        'halo_ptr': (torch.int64, num_parts + 1),
        'halo_pos': (torch.int32, num_halo),
        'boundary_ptr': (torch.int64, num_parts + 1),
        'boundary_pos': (torch.int32, num_boundary),
        'block_ptr': (torch.int64, num_parts + 1),
        'src': (torch.int32, num_edges),
        'dst': (torch.int32, num_edges),
        'e_id': (torch.int64, num_edges),
    }
    path = folder / format.SAR_FILE
    for name, (dtype, size) in expected.items():
        _check(path, name, sar.get(name), size, dtype)
    _check_counts(path, 'halo_ptr', sar, info['halo_rows'][part])
    _check_counts(path, 'boundary_ptr', sar, [rows[part] for rows in info['halo_rows']])
    _check_counts(path, 'block_ptr', sar, info['block_edges'][part])
    for q in range(num_parts):
        start, end = (num_nodes + int(n) for n in sar['halo_ptr'][q : q + 2])
        first, last = (0, num_nodes) if q == part else (start, end)
        edges = slice(*sar['block_ptr'][q : q + 2].tolist())
        _check_range(path, 'src', sar['src'][edges], first, last)
        _check_range(path, 'dst', sar['dst'][edges], 0, num_nodes)
        if bool((sar['dst'][edges].diff() < 0).any()):
            raise ValueError(f"expected ascending 'dst' in block {q} of '{path}' (got others)")
        _check_range(path, 'halo_pos', _group(sar, 'halo', q), 0, info['part_num_nodes'][q])
        _check_range(path, 'boundary_pos', _group(sar, 'boundary', q), 0, num_nodes)
    for kind in ('node', 'edge'):
        feats = out[f'{kind}_feats'].get('feats', {})
        if not isinstance(feats, dict):
            raise ValueError(f"expected a dict 'feats' in '{folder}' (got {type(feats).__name__})")
    for kind, count in (('node', num_nodes), ('edge', num_edges)):
        attrs = {**out[f'{kind}_feats'].get('feats', {}), **out[f'{kind}_attrs']}
        for name in info[f'{kind}_attrs']:
            _check(folder, name, attrs.get(name), count)
    return out


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a complete partition folder with '{path}' (got no such file)"
        )
    try:
        # Never a fallback: a file that needs more than tensors is not ours.
        content = torch.load(path, weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"expected a file of tensors at '{path}' (got {reason})") from error
    if not isinstance(content, dict):
        raise ValueError(f"expected a dict in '{path}' (got {type(content).__name__})")
    return content


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


def _join(
    parts: list[Tensors], meta: dict[str, Any], root: Path, rank: int, world_size: int
) -> tuple[Shard, Tensor, Tensor | None]:
    """Puts a rank's parts together.

    Returns:
        The shard, its edge_index, and the place of every edge among the parts' edges one after
        another (None where that is their order already).
    """
    num_parts = meta['num_parts']
    per_rank = num_parts // world_size
    own = range(rank * per_rank, (rank + 1) * per_rank)
    own_ptr = [0]
    for p in parts:
        own_ptr.append(own_ptr[-1] + p['n_id'].numel())
    num_own = own_ptr[-1]

    # Halo rows: two own parts may read the same remote row; it is fetched once.
    halo_pos = [_unique([_group(p, 'halo', q) for p in parts], q in own) for q in range(num_parts)]
    halo_ptr = [0]
    for pos in halo_pos:
        halo_ptr.append(halo_ptr[-1] + pos.numel())

    src, dst, place, block_ptr = [], [], [], [0]
    edge_start = [0]
    for p in parts:
        edge_start.append(edge_start[-1] + p['e_id'].numel())
    for q in range(num_parts):
        for i, p in enumerate(parts):
            start, end = p['block_ptr'][q : q + 2].tolist()
            src_q = p['src'][start:end].long()
            if own[i] == q:
                src_q = src_q + own_ptr[i]
            else:
                first = p['n_id'].numel() + int(p['halo_ptr'][q])
                pos = _group(p, 'halo', q)[src_q - first].long()
                if q in own:
                    src_q = pos + own_ptr[q - own.start]
                else:
                    src_q = torch.searchsorted(halo_pos[q], pos) + (num_own + halo_ptr[q])
            src.append(src_q)
            dst.append(p['dst'][start:end].long() + own_ptr[i])
            place.append(torch.arange(start, end) + edge_start[i])
        block_ptr.append(block_ptr[-1] + sum(t.numel() for t in src[-len(parts) :]))
    edge_index = torch.stack([torch.cat(src), torch.cat(dst)])

    steps = []
    for s in range(1, world_size):
        sender, reader = (rank - s) % world_size, (rank + s) % world_size
        readers = range(reader * per_rank, (reader + 1) * per_rank)
        for i in range(per_rank):
            q = sender * per_rank + i
            sent = _unique([_group(parts[i], 'boundary', r) for r in readers], False)
            steps.append(
                Step(
                    part=q,
                    recv_rank=sender,
                    recv_rows=halo_ptr[q + 1] - halo_ptr[q],
                    send_rank=reader,
                    send_index=sent + own_ptr[i],
                )
            )
    shard = Shard(
        root=str(root),
        fingerprint=meta['pyg_sar']['fingerprint'],
        rank=rank,
        world_size=world_size,
        num_parts=num_parts,
        num_nodes=meta['pyg_sar']['num_nodes'],
        own_ptr=tuple(own_ptr),
        halo_ptr=tuple(halo_ptr),
        block_ptr=tuple(block_ptr),
        steps=tuple(steps),
    )
    return shard, edge_index, None if len(parts) == 1 else torch.cat(place)


def _group(part: Tensors, kind: str, other: int) -> Tensor:
    """A part's halo rows owned by another part, or its boundary rows read by another."""
    start, end = part[f'{kind}_ptr'][other : other + 2].tolist()
    return part[f'{kind}_pos'][start:end]


def _unique(groups: list[Tensor], is_empty: bool) -> Tensor:
    """The ascending union, int64."""
    if is_empty:
        return torch.empty(0, dtype=torch.int64)
    return torch.unique(torch.cat(groups).long()) if len(groups) > 1 else groups[0].long()


def _cat(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat(values)
