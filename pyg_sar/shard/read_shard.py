"""Reads a rank's own parts from a partition folder, and joins them relation by relation."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import AttrType

from pyg_sar.shard.csr import check_block_edges
from pyg_sar.shard.edges import LocalEdges, ShardEdges
from pyg_sar.shard.files import file_checksum, load_tensors, own_file
from pyg_sar.shard.format import (
    META_FILE,
    NODE_NAMES,
    PART_FILES,
    WHOLE_FILE,
    EdgeKey,
    node_names_file,
    part_dir,
    type_name,
)
from pyg_sar.shard.meta import Meta, read_meta
from pyg_sar.shard.node_names import NodeNames
from pyg_sar.shard.parts import Part, Tensors, read_part, rows_of
from pyg_sar.shard.shard import Cut, Shard, make_steps
from pyg_sar.utils.installed import missing

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def read_shard(
    root: str | Path,
    rank: int,
    world_size: int | None,
    *,
    verify: bool = True,
    whole_graph: bool = False,
    meta: Meta | None = None,
) -> Data | HeteroData:
    """Reads the parts of one rank into a PyG ``Data``; see :func:`pyg_sar.load_shard`.

    `meta` is what META.json says, if it was read before. Without `world_size` there is a rank for
    every part. With `verify` files are compared with their checksums. With `whole_graph` one rank
    reads all parts, and gives rows in the graph's order.
    """
    root = Path(root)
    meta = read_meta(root) if meta is None else meta
    num_parts = meta.num_parts
    world_size = num_parts if world_size is None else world_size
    if num_parts % world_size:
        fitting = ', '.join(str(n) for n in range(num_parts, 0, -1) if num_parts % n == 0)
        raise ValueError(
            f"expected ranks among which the {num_parts} parts of '{root}' can be dealt: {fitting} "
            f'(got {world_size}); or cut the graph into {world_size} or {2 * world_size} parts'
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"'rank' must lie in [0, {world_size}) (got {rank})")
    per_rank = num_parts // world_size
    own = range(rank * per_rank, (rank + 1) * per_rank)
    missing = [part for part in own if not os.path.isdir(part_dir(root, part))]
    if missing:
        folders = "', '".join(str(part_dir(root, part)) for part in missing)
        raise FileNotFoundError(
            f"expected the folders of parts {own.start} to {own.stop - 1} in '{root}', which rank "
            f"{rank} of {world_size} owns (got no '{folders}'; copy what is missing)"
        )
    parts = [read_part(root, part, meta) for part in own]
    if verify:  # last, as other errors say more
        check_files(root, meta, [f'part_{part}/{name}' for part in own for name in PART_FILES])

    data = HeteroData() if meta.is_hetero else Data()
    for node_key, nodes in meta.nodes.items():
        ids = [part.n_id[node_key] for part in parts]
        n_id, join = _cat(ids), partial(_in_order, ids) if whole_graph else _cat
        names = sorted(nodes.attrs, key=lambda name: name != 'x')  # whose rows PyG counts
        attrs = {n: join([part.node_attrs[node_key][n] for part in parts]) for n in names}
        if whole_graph:
            _check_each_once(root, 'nodes', n_id)
            n_id = torch.arange(n_id.numel())
        store = data if node_key is None else data[node_key]
        _put(store, {'num_nodes_total': nodes.num_nodes, **attrs, 'n_id': n_id})
        if not nodes.is_counted:
            store['num_nodes'] = n_id.numel()
        _put(store, nodes.extra)
        vars(data.stores[0] if node_key is None else store)['_graph'] = meta.graph
        file = node_names_file('', node_key).as_posix()
        if file in meta.checksums:
            if verify:
                check_files(root, meta, [file])
            store[NODE_NAMES] = NodeNames(own_file(root, root / file))
    for edge_key, edges in meta.edges.items():
        shard, edge_index, runs = _join(parts, edge_key, meta, root, rank, world_size)
        ids = [part.index[edge_key]['e_id'] for part in parts]
        join = partial(_in_order, ids) if whole_graph else partial(_cat_runs, runs)
        values = {n: join([part.edge_attrs[edge_key][n] for part in parts]) for n in edges.attrs}
        values['e_id'] = _cat_runs(runs, ids)
        n_id = _cat([part.n_id[edges.src] for part in parts])
        dst_id = _cat([part.n_id[edges.dst] for part in parts]) if shard.is_bipartite else None
        if whole_graph:
            _check_each_once(root, 'edges', values['e_id'])
            ends = n_id, n_id if dst_id is None else dst_id
            whole_index = torch.stack([ids[row] for ids, row in zip(ends, edge_index, strict=True)])
            edge_index = torch.empty_like(whole_index)
            edge_index[:, values['e_id']] = whole_index
            values['e_id'] = torch.arange(whole_index.size(1))
            shard = _of_whole_graph(shard, ends, (shard.own_ptr, shard.dst_ptr or shard.own_ptr))
            n_id = torch.arange(n_id.numel())
            dst_id = None if dst_id is None else torch.arange(dst_id.numel())
        shard = replace(shard, e_id=values['e_id'], n_id=n_id, dst_id=dst_id)
        handle = ShardEdges(edge_index, shard, is_whole=True)
        store = data if edge_key is None else data[edge_key]
        _put(store, {'edge_index': LocalEdges.of(handle), **values, **edges.extra})
    _put(data, meta.graph_attrs)
    _put_whole(data, root, meta, verify=verify)
    if isinstance(data, Data):
        note_kinds(data, meta)
    return data


def check_files(root: Path, meta: Meta, names: Iterable[str]) -> None:
    """Compares META.json, and files that it lists by their paths, with their checksums."""
    if not meta.is_unchanged:
        raise ValueError(f"expected '{root / META_FILE}' as it was written (got another checksum)")
    for name in names:
        path = own_file(root, root / name)
        if name in meta.checksums and file_checksum(path) != meta.checksums[name]:
            raise ValueError(f"expected '{path}' as it was written (got another checksum)")


def note_kinds(data: Data, meta: Meta) -> None:
    """Tells PyG, which goes by numbers of rows, what is of nodes and what of edges."""
    kinds: defaultdict[AttrType, set[str]] = defaultdict(set)
    for nodes in meta.nodes.values():
        kinds[AttrType.NODE] |= {'n_id', *nodes.attrs}
    for edges in meta.edges.values():
        kinds[AttrType.EDGE] |= {'e_id', *edges.attrs}
    kinds[AttrType.OTHER] |= of_whole(data.stores[0])
    vars(data.stores[0])['_cached_attr'] = kinds
    if not all(map(data.is_edge_attr, kinds[AttrType.EDGE])):
        raise missing('torch_geometric.data.Data._cached_attr')


def _put_whole(data: Any, root: Path, meta: Meta, *, verify: bool) -> None:
    """Adds the tensors that every rank has whole, for PyG neither of nodes nor of edges."""
    if WHOLE_FILE not in meta.checksums:
        return
    if verify:
        check_files(root, meta, [WHOLE_FILE])
    by_type = load_tensors(root / WHOLE_FILE, dict, root=root)
    stores = {'' if store._key is None else type_name(store._key): store for store in data.stores}
    for name, tensors in by_type.items():
        are_tensors = isinstance(tensors, dict) and all(
            isinstance(value, Tensor) for value in tensors.values()
        )
        if name not in stores or not are_tensors or stores[name].keys() & tensors.keys():
            raise ValueError(f"expected tensors of known types in '{WHOLE_FILE}' (got '{name}')")
        _put(stores[name], tensors)
        kinds: defaultdict[AttrType, set[str]] = defaultdict(set)
        kinds[AttrType.OTHER] = {*tensors}
        vars(stores[name]).update(_cached_attr=kinds, _whole=frozenset(tensors))


def of_whole(store: Any) -> frozenset[str]:
    """The names of the tensors of a store that every rank has whole."""
    names: frozenset[str] = vars(store).get('_whole', frozenset())
    return names


def _put(store: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        store[name] = value


def _cat(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat(values)


def _cat_runs(runs: list[tuple[int, slice]], values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.cat([values[i][rows] for i, rows in runs])


def _in_order(ids: list[Tensor], values: list[Tensor]) -> Tensor:
    """Rows of all parts in the order of the graph; `ids` are those of each part's rows."""
    out = values[0].new_empty(sum(map(len, values)), *values[0].shape[1:])
    words = _WORDS.get(out.element_size(), out.dtype)  # not every dtype can be written by index
    for of_part, rows in zip(ids, values, strict=True):
        out.view(words)[of_part] = rows.view(words)
    return out


def _check_each_once(root: Path, what: str, ids: Tensor) -> None:
    """Raises ValueError if the parts do not have every node or edge of the graph once."""
    is_there = torch.zeros(ids.numel(), dtype=torch.bool)
    is_there[ids] = True  # each is below the number of nodes or edges
    if not is_there.all():
        raise ValueError(
            f"expected parts in '{root}' that have every one of {ids.numel()} {what} once (got "
            'some twice, or ids of another graph)'
        )


def _of_whole_graph(shard: Shard, ends: Sequence[Tensor], ptrs: Sequence[Sequence[int]]) -> Shard:
    """A shard of all nodes and edges, as one part, with ids of the graph."""
    return replace(
        shard,
        num_parts=1,
        own_ptr=(0, shard.num_own),
        halo_ptr=(0, 0),
        block_ptr=(0, shard.num_edges),
        dst_ptr=None if shard.dst_rows is None else (0, shard.dst_rows),
        cut=(Cut(ends[0], tuple(ptrs[0])), Cut(ends[1], tuple(ptrs[1]))),
    )


def _join(
    parts: list[Part], key: EdgeKey, meta: Meta, root: Path, rank: int, world_size: int
) -> tuple[Shard, Tensor, list[tuple[int, slice]]]:
    """The shard of one relation, its edge_index, and the runs of edges that it takes of parts."""
    num_parts, info = meta.num_parts, meta.edges[key]
    per_rank = num_parts // world_size
    own = range(rank * per_rank, (rank + 1) * per_rank)
    indices = [part.index[key] for part in parts]
    own_ptr = [0, *accumulate(part.n_id[info.src].numel() for part in parts)]
    dst_ptr = [0, *accumulate(part.n_id[info.dst].numel() for part in parts)]

    # Halo rows: two own parts may read the same remote row; it is fetched once.
    halo_pos = [
        _unique([rows_of(p, 'halo', q) for p in indices], q in own) for q in range(num_parts)
    ]
    halo_ptr = [0, *accumulate(pos.numel() for pos in halo_pos)]

    runs: list[tuple[int, slice]] = []
    block_ptr = [0]
    rank_ids = [_rank_ids(p, i, own, own_ptr, halo_pos, halo_ptr) for i, p in enumerate(indices)]
    edge_index = torch.empty(2, sum(p['src'].numel() for p in indices), dtype=torch.int64)
    for q in range(num_parts):
        check_block_edges(sum(int(p['block_ptr'][q : q + 2].diff()) for p in indices))
        end = block_ptr[-1]
        for i, p in enumerate(indices):
            edges = slice(*p['block_ptr'][q : q + 2].tolist())
            start, end = end, end + edges.stop - edges.start
            torch.index_select(rank_ids[i], 0, p['src'][edges], out=edge_index[0, start:end])
            torch.add(p['dst'][edges], dst_ptr[i], out=edge_index[1, start:end])
            runs.append((i, edges))
        block_ptr.append(end)

    def sent(reader: int, i: int) -> Tensor:
        readers = range(reader * per_rank, (reader + 1) * per_rank)
        return own_ptr[i] + _unique([rows_of(indices[i], 'boundary', r) for r in readers], False)

    shard = Shard(
        root=str(root),
        # A layer that is used for two relations agrees with the other ranks about each.
        fingerprint=meta.fingerprint if key is None else f'{meta.fingerprint} {type_name(key)}',
        rank=rank,
        world_size=world_size,
        num_parts=num_parts,
        num_nodes=meta.nodes[info.src].num_nodes,
        own_ptr=tuple(own_ptr),
        halo_ptr=tuple(halo_ptr),
        block_ptr=tuple(block_ptr),
        steps=make_steps(rank, world_size, halo_ptr, sent),
        dst_rows=None if info.src == info.dst else dst_ptr[-1],
        dst_ptr=None if info.src == info.dst else tuple(dst_ptr),
    )
    return shard, edge_index, runs


def _rank_ids(
    index: Tensors, i: int, own: range, own_ptr: list[int], halo_pos: list[Tensor], halo_ptr: Any
) -> Tensor:
    """The id in the rank of every local id of its i-th part."""
    if len(own) == 1:
        return torch.arange(own_ptr[-1] + halo_ptr[-1])
    ids = [torch.arange(own_ptr[i], own_ptr[i + 1])]
    for q, pos_of_rank in enumerate(halo_pos):
        pos = rows_of(index, 'halo', q).long()
        if q in own:
            ids.append(pos + own_ptr[q - own.start])
        else:
            ids.append(torch.searchsorted(pos_of_rank, pos) + (own_ptr[-1] + halo_ptr[q]))
    return torch.cat(ids)


def _unique(groups: list[Tensor], is_empty: bool) -> Tensor:
    if is_empty:
        return torch.empty(0, dtype=torch.int64)
    return torch.unique(torch.cat(groups).long()) if len(groups) > 1 else groups[0].long()
