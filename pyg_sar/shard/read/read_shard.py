"""Reads a rank's own parts from a partition folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.format.checksums import check_files
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey
from pyg_sar.shard.format.meta import Meta, read_meta
from pyg_sar.shard.read.join_parts import join
from pyg_sar.shard.read.parts import READ_FILES, Part, read_part


def read_shard(
    root: str | Path,
    rank: int,
    world_size: int | None,
    *,
    verify: bool = True,
) -> Data | HeteroData:
    """Reads the parts of one rank into a PyG ``Data``; see :func:`pyg_sar.load_shard`.

    Args:
        root: The partition folder.
        rank: Which rank's parts.
        world_size: Number of ranks; divides the number of parts. None for one rank per part.
        verify: Whether files are compared with their checksums.

    Returns:
        A ``HeteroData`` if the folder holds a heterogeneous graph.

    Raises:
        FileNotFoundError: If the folder or a file of an own part is missing.
        ValueError: If `world_size` does not divide the number of parts, or a file does not hold
            what META.json says.
    """
    root = Path(root)
    meta = read_meta(root)
    num_parts = meta.num_parts
    world_size = num_parts if world_size is None else world_size
    if num_parts % world_size:
        raise ValueError(
            f"'num_parts' must be a multiple of the world size (got {num_parts} parts in "
            f"'{root}' and {world_size} ranks)"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"'rank' must lie in [0, {world_size}) (got {rank})")
    per_rank = num_parts // world_size
    own = range(rank * per_rank, (rank + 1) * per_rank)
    parts = [read_part(root, part, meta) for part in own]
    if verify:  # last, as other errors say more
        check_files(root, meta, [f'part_{part}/{name}' for part in own for name in READ_FILES])

    data = HeteroData() if meta.is_hetero else Data()
    for node_key in meta.nodes:
        _put(data if node_key is None else data[node_key], _nodes(parts, node_key, meta))
    for edge_key in meta.edges:
        shard, edge_index, perm = join(parts, edge_key, meta, root, rank, world_size)
        values = _edges(parts, edge_key, meta, perm)
        n_id = _cat([part.n_id[meta.edges[edge_key].src] for part in parts])
        shard = replace(shard, e_id=values['e_id'], n_id=n_id)
        handle = ShardEdgeIndex.wrap(edge_index, shard, is_whole=True)
        _put(data if edge_key is None else data[edge_key], {'edge_index': handle, **values})
    _put(data, meta.graph_attrs)
    return data


def _nodes(parts: list[Part], key: NodeKey, meta: Meta) -> dict[str, Any]:
    n_id = _cat([part.n_id[key] for part in parts])
    info = meta.nodes[key]
    attrs = {name: _cat([part.node_attrs[key][name] for part in parts]) for name in info.attrs}
    return {**attrs, 'n_id': n_id, 'num_nodes': n_id.numel(), **info.extra}


def _edges(parts: list[Part], key: EdgeKey, meta: Meta, perm: Tensor | None) -> dict[str, Any]:
    info = meta.edges[key]
    values = {name: _cat([part.edge_attrs[key][name] for part in parts]) for name in info.attrs}
    values['e_id'] = _cat([part.index[key]['e_id'] for part in parts])
    if perm is not None:
        values = {name: value[perm] for name, value in values.items()}
    return {**values, **info.extra}


def _put(store: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        store[name] = value


def _cat(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat(values)
