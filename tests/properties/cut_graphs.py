"""Cuts a drawn graph, and compares what ranks load of it with what was drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from drawn_graphs import Drawn
from drawn_values import same
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar import partition_graph
from pyg_sar.shard.edges import LocalEdges
from pyg_sar.shard.read_shard import read_shard

RESERVED = {'num_nodes', 'num_nodes_total', 'edge_index', 'n_id', 'e_id'}
FACTS = ('num_classes', 'label_range')
"""Of labels; beside what was drawn."""


@contextmanager
def cut(drawn: Drawn) -> Iterator[Path]:
    """A partition folder of the graph, for as long as the context lasts."""
    with TemporaryDirectory() as folder:
        write(drawn, Path(folder) / 'parts')
        yield Path(folder) / 'parts'


def write(drawn: Drawn, root: Path) -> None:
    """Partitions the graph into the folder `root`."""
    method: Any = drawn.method
    if method == 'given':
        method = drawn.parts.get(None, drawn.parts)
    if method == 'file':
        file = root.parent / f'{root.name}.npy'
        np.save(file, torch.cat(list(drawn.parts.values())).to(torch.uint8).numpy())
        method = f'file:{file}'
    partition_graph(drawn.data, drawn.num_parts, root, method=method)


def drawn_of(graph: Data | HeteroData) -> Drawn:
    """A graph that was not drawn, as one that was."""
    drawn = Drawn(graph)
    if isinstance(graph, Data):
        nodes, edges = {None: graph}, {None: graph}
        drawn.extra[''] = {}
    else:
        nodes, edges = dict(graph.node_items()), dict(graph.edge_items())
        drawn.extra[''] = dict(graph._global_store)
    for key, store in nodes.items():
        drawn.num_nodes[key] = store.num_nodes
        drawn.node_attrs[key] = _rows(store, store.num_nodes)
    for key, store in edges.items():
        drawn.edges[key] = store.edge_index
        drawn.edge_attrs[key] = _rows(store, store.edge_index.size(1))
    for key, store in {**nodes, **edges}.items():
        others = {k: v for k, v in store.items() if not isinstance(v, Tensor) and k != 'num_nodes'}
        drawn.extra['' if key is None else key] = others
    return drawn


def _rows(store: Any, count: int) -> dict[str, Tensor]:
    """What has a row for each of so many nodes or edges."""
    tensors = {k: v for k, v in store.items() if isinstance(v, Tensor) and k != 'edge_index'}
    return {name: value for name, value in tensors.items() if value.size(0) == count}


def check_ranks(drawn: Drawn, root: Path, world_size: int) -> None:
    """All ranks together hold exactly the graph."""
    shards = [read_shard(root, rank, world_size) for rank in range(world_size)]
    for key, count in drawn.num_nodes.items():
        check_once([drawn.store(data, key)['n_id'] for data in shards], count)
    for data in shards:
        _check_attributes(drawn, data)
    for key in drawn.edges:
        _check_edges(drawn, shards, key)


def check_rows(got: Tensor, ids: Tensor, want: Tensor, what: object) -> None:
    """Rows of a part or a rank are those of the whole graph, bit by bit."""
    assert same(got, want[ids]), what


def check_once(ids: list[Tensor], count: int) -> None:
    """Every id of the graph occurs exactly once."""
    assert torch.equal(torch.cat(ids).sort().values, torch.arange(count))


def _loaded(drawn: Drawn, data: Any, key: Any) -> dict[str, Any]:
    """What a rank holds of a type or relation, but what every shard has; '' is the whole graph."""
    if key == '' and None not in drawn.num_nodes:
        found = data._global_store
    else:
        found = drawn.store(data, key)
    given = {*drawn.extra.get(key, {}), *(drawn.extra.get('', {}) if key is None else {})}
    others = RESERVED | ({*FACTS} - given)
    return {name: value for name, value in found.items() if name not in others}


def _check_attributes(drawn: Drawn, data: Any) -> None:
    """Names, rows, types, and values of the graph, of one rank."""
    if None in drawn.num_nodes:
        attrs, extra = {**drawn.node_attrs[None], **drawn.edge_attrs[None]}, drawn.extra.get('', {})
        found = _loaded(drawn, data, None)
        assert found.keys() == {*attrs, *extra}
        assert {name: found[name] for name in extra} == extra
    else:
        extra = {key: {} for key in ('', *drawn.num_nodes, *drawn.edges)} | drawn.extra
        for key, values in extra.items():
            found = _loaded(drawn, data, key)
            attrs = {**drawn.node_attrs, **drawn.edge_attrs, '': {}}[key]
            assert found.keys() == {*attrs, *values}
            assert {name: found[name] for name in values} == values
    for key, count in drawn.num_nodes.items():
        store = drawn.store(data, key)
        assert store.num_nodes == store['n_id'].numel()
        assert store['num_nodes_total'] == count
        for name, want in drawn.node_attrs[key].items():
            check_rows(store[name], store['n_id'], want, (key, name))
    for key in drawn.edges:
        store = drawn.store(data, key)
        for name, want in drawn.edge_attrs[key].items():
            check_rows(store[name], store['e_id'], want, (key, name))


def _halo_ids(shards: list[Any], rank: int, drawn: Drawn, key: Any) -> Tensor:
    """Ids of the rows that a rank receives, as the senders pick them."""
    src_key = None if key is None else key[0]
    mine = drawn.store(shards[rank], key).edge_index.handle.shard
    assert len(mine.steps) == mine.num_parts - mine.parts_per_rank
    halo = torch.full((mine.num_halo,), -1)
    for number, step in enumerate(mine.steps):
        sender = drawn.store(shards[step.recv_rank], key).edge_index.handle.shard
        sent = sender.steps[number]
        assert sent.send_rank == rank
        assert sent.send_index.numel() == step.recv_rows
        n_id = drawn.store(shards[step.recv_rank], src_key)['n_id']
        start, end = mine.source_range(step.part)
        halo[start - mine.num_own : end - mine.num_own] = n_id[sent.send_index]
    return halo


def _check_edges(drawn: Drawn, shards: list[Any], key: Any) -> None:
    """Every edge once, between the nodes it had, whatever rank its source is on."""
    src_key, dst_key = (None, None) if key is None else (key[0], key[2])
    check_once([drawn.store(data, key)['e_id'] for data in shards], drawn.edges[key].size(1))
    for rank, data in enumerate(shards):
        store, edge_index = drawn.store(data, key), drawn.store(data, key).edge_index
        shard = edge_index.handle.shard
        assert isinstance(edge_index, LocalEdges)
        assert edge_index.handle.is_whole
        assert edge_index.dtype == store['e_id'].dtype == torch.int64
        assert edge_index.shape == (2, store['e_id'].numel()) == (2, shard.num_edges)
        assert (shard.rank, shard.world_size) == (rank, len(shards))
        assert shard.num_nodes == drawn.num_nodes[src_key]
        assert shard.is_bipartite == (src_key != dst_key)
        n_id, dst_id = drawn.store(data, src_key)['n_id'], drawn.store(data, dst_key)['n_id']
        assert (shard.num_own, shard.num_dst) == (n_id.numel(), dst_id.numel())
        halo = _halo_ids(shards, rank, drawn, key)
        assert halo.unique().numel() == halo.numel()
        src, dst = edge_index.as_subclass(Tensor)
        ends = torch.stack([torch.cat([n_id, halo])[src], dst_id[dst]])
        assert torch.equal(ends, drawn.edges[key][:, store['e_id']])
        read = src[src >= shard.num_own].unique() - shard.num_own
        assert torch.equal(read, torch.arange(halo.numel()))
