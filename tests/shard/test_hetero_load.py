"""Loading a heterogeneous graph: all ranks together hold it, and PyG's idioms work on each."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import CITES, HAS, REVIEWS, WRITES, assignment, hetero_graph
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from small_graphs import assemble, assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar import load_shard, partition_graph
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.read.read_shard import read_shard

LAYOUTS = [(1, 1), (1, 3), (2, 2), (2, 6), (3, 3), (4, 4)]
"""World sizes and numbers of parts."""

RESERVED = {'edge_index', 'num_nodes'}


def _sources(data: HeteroData, rel: tuple[str, str, str], shards: list[HeteroData], root: Path):
    """The global id of every local source, through the owners' ids and boundary lists."""
    shard = data[rel].edge_index.shard
    ids = [data[rel[0]].n_id]
    for part in range(shard.num_parts):
        if part in shard.parts:
            continue
        sar = torch.load(root / f'part_{part}' / 'sar.pt', weights_only=True)
        index = sar['edges'][rel]
        ptr = index['boundary_ptr']
        groups = [index['boundary_pos'][ptr[own] : ptr[own + 1]] for own in shard.parts]
        rows = torch.cat(groups).long().unique()
        start, end = shard.source_range(part)
        assert end - start == rows.numel()
        ids.append(sar['n_id'][rel[0]][rows])
    return torch.cat(ids)


def _check_together(shards: list[HeteroData], graph: HeteroData, root: Path) -> None:
    for name in graph.node_types:
        count = graph[name].num_nodes
        assert assemble([(d[name].n_id, d[name].n_id) for d in shards], count).numel() == count
        for attr, value in graph[name].items():
            if isinstance(value, Tensor):
                rows = assemble([(d[name].n_id, d[name][attr]) for d in shards], count)
                assert rows.dtype == value.dtype
                assert torch.equal(rows, value), (name, attr)
    for rel in graph.edge_types:
        count = graph[rel].edge_index.size(1)
        edges = []
        for data in shards:
            src = _sources(data, rel, shards, root)
            local = data[rel].edge_index.as_subclass(Tensor)
            ends = torch.stack([src[local[0]], data[rel[2]].n_id[local[1]]])
            edges.append((data[rel].e_id, ends.t()))
        assert torch.equal(assemble(edges, count).t(), graph[rel].edge_index), rel
        for attr, value in graph[rel].items():
            if attr != 'edge_index':
                rows = assemble([(d[rel].e_id, d[rel][attr]) for d in shards], count)
                assert rows.dtype == value.dtype
                assert torch.equal(rows, value), (rel, attr)


def _check_one(data: HeteroData, graph: HeteroData, rank: int, world_size: int) -> None:
    assert data.metadata() == graph.metadata()
    assert data.name == 'toy'
    assert data.sizes == [1, 2]
    assert data['paper'].num_classes == 3
    for name in graph.node_types:
        assert set(data[name].keys()) == {
            *graph[name].keys(),
            'n_id',
            'num_nodes',
            'num_nodes_total',
            *(['label_range'] if 'y' in graph[name] else []),
        }
        assert data[name].num_nodes == data[name].n_id.numel()
    for rel in graph.edge_types:
        store, shard = data[rel], data[rel].edge_index.shard
        assert set(store.keys()) == {*graph[rel].keys(), 'e_id'}
        assert isinstance(store.edge_index, ShardEdgeIndex)
        assert store.edge_index.is_whole
        assert store.edge_index.shape == (2, shard.num_edges)
        assert (shard.rank, shard.world_size) == (rank, world_size)
        assert shard.num_nodes == graph[rel[0]].num_nodes
        assert shard.num_own == data[rel[0]].num_nodes
        assert shard.num_dst == data[rel[2]].num_nodes
        assert shard.is_bipartite == (rel[0] != rel[2])
        assert len(shard.steps) == shard.num_parts - shard.parts_per_rank
        halo = set(range(shard.num_own, shard.num_own + shard.num_halo))
        assert halo <= set(store.edge_index.as_subclass(Tensor)[0].tolist())


@pytest.mark.parametrize('method', few(['uneven', 'metis', 'random']))
@pytest.mark.parametrize(('world_size', 'num_parts'), LAYOUTS)
def test_ranks_together_hold_the_graph(tmp_path, world_size, num_parts, method):
    graph = hetero_graph()
    method = assignment(num_parts) if method == 'uneven' else method
    partition_graph(graph, num_parts, tmp_path / 'parts', method=method)
    shards = [read_shard(tmp_path / 'parts', rank, world_size) for rank in range(world_size)]
    for rank, data in enumerate(shards):
        _check_one(data, graph, rank, world_size)
    _check_together(shards, graph, tmp_path / 'parts')


@st.composite
def _graphs(draw: Any) -> tuple[HeteroData, dict[str, Tensor], int, int]:
    """Up to three types and four relations of any sizes, cut anyhow."""
    world_size = draw(st.integers(1, 3))
    num_parts = world_size * draw(st.integers(1, 2))
    names = 'abc'[: draw(st.integers(1, 3))]
    data = HeteroData()
    parts = {}
    for i, name in enumerate(names):
        count = draw(st.integers(num_parts if i == 0 else 0, 8))
        data[name].num_nodes = count
        data[name].z = torch.arange(count) * 7
        ids = st.lists(st.integers(0, num_parts - 1), min_size=count, max_size=count)
        parts[name] = torch.tensor(draw(ids), dtype=torch.int64)
    for i in range(draw(st.integers(1, 4))):
        src, dst = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        ends = st.tuples(
            st.integers(0, max(data[src].num_nodes - 1, 0)),
            st.integers(0, max(data[dst].num_nodes - 1, 0)),
        )
        limit = 12 if data[src].num_nodes and data[dst].num_nodes else 0
        edges = draw(st.lists(ends, max_size=limit))
        data[src, f'r{i}', dst].edge_index = torch.tensor(edges).long().view(-1, 2).t()
        data[src, f'r{i}', dst].w = torch.arange(len(edges)) * 3
    return data, parts, world_size, num_parts


@given(_graphs())
def test_any_graph(drawn):
    graph, parts, world_size, num_parts = drawn
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / 'parts'
        partition_graph(graph, num_parts, root, method=parts)
        shards = [read_shard(root, rank, world_size) for rank in range(world_size)]
        _check_together(shards, graph, root)
        for name in parts:
            for rank, data in enumerate(shards):
                owners = parts[name][data[name].n_id] * world_size // num_parts
                assert bool((owners == rank).all())


def test_pyg_idioms(tmp_path):
    graph = hetero_graph()
    partition_graph(graph, 2, tmp_path / 'parts')
    data = load_shard(tmp_path / 'parts', 1)
    assert data.x_dict.keys() == {'paper', 'author', 'lonely'}
    assert {rel: e.shard.num_edges for rel, e in data.edge_index_dict.items()} == {
        rel: data[rel].e_id.numel() for rel in graph.edge_types
    }
    assert all(isinstance(e, ShardEdgeIndex) for e in data.edge_index_dict.values())
    assert data.edge_attr_dict.keys() == graph.edge_attr_dict.keys()
    assert data.num_nodes_dict == {name: data[name].n_id.numel() for name in graph.node_types}
    assert data['author'].age.dtype == torch.int16
    assert data[WRITES].year.dtype == torch.int32
    moved = data.to('cpu')
    assert moved[HAS].edge_index.shard.is_bipartite
    assert data[REVIEWS].edge_index.shape == (2, 0)


def _found(root: str) -> dict[str, Any]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    edges = {rel: e.as_subclass(Tensor) for rel, e in data.edge_index_dict.items()}
    return {'rank': data[CITES].edge_index.shard.rank, 'x': data.x_dict, 'edges': edges}


@pytest.mark.parametrize(('world_size', 'num_parts'), [(2, 4), (3, 3)])
def test_on_several_ranks(tmp_path, world_size, num_parts):
    partition_graph(hetero_graph(), num_parts, tmp_path / 'parts')
    for rank, found in enumerate(run_ranks(_found, world_size, str(tmp_path / 'parts'))):
        want = read_shard(tmp_path / 'parts', rank, world_size)
        assert found['rank'] == rank
        for name, x in want.x_dict.items():
            assert torch.equal(found['x'][name], x)
        for rel, edge_index in want.edge_index_dict.items():
            assert torch.equal(found['edges'][rel], edge_index.as_subclass(Tensor))


def test_only_the_own_parts_are_read(tmp_path):
    partition_graph(hetero_graph(), 3, tmp_path / 'parts')
    for name in ('part_0', 'part_2', 'node_map', 'edge_map'):
        shutil.rmtree(tmp_path / 'parts' / name)
    assert read_shard(tmp_path / 'parts', 1, 3)['paper'].num_nodes > 0


# Breaking a folder


def _meta(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        meta = json.loads((root / 'META.json').read_text())
        change(meta['pyg_sar'])
        (root / 'META.json').write_text(json.dumps(meta))

    return edit


def _file(name: str, change: Callable[[dict[Any, Any]], object]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        path = root / 'part_1' / name
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)

    return edit


BROKEN = {
    'nodes missing in META': _meta(lambda meta: meta.pop('nodes')),
    'a type without a name': _meta(lambda meta: meta['nodes'][0].pop('type')),
    'a relation of two names': _meta(lambda meta: meta['edges'][0]['type'].pop()),
    'a relation of numbers': _meta(lambda meta: meta['edges'][0].update(type=[1, 2, 3])),
    'an unknown type': _meta(lambda meta: meta['nodes'].pop(0)),
    'counts of a type': _meta(lambda meta: meta['nodes'][0]['part_num_nodes'].pop()),
    'halo rows': _meta(lambda meta: meta['edges'][0]['halo_rows'][1].__setitem__(0, 10**6)),
    'an entry that is a list': _meta(lambda meta: meta['edges'].append([])),
    'no n_id': _file('sar.pt', lambda sar: sar.pop('n_id')),
    'no n_id of a type': _file('sar.pt', lambda sar: sar['n_id'].pop('author')),
    'no relation': _file('sar.pt', lambda sar: sar['edges'].pop(HAS)),
    'no src': _file('sar.pt', lambda sar: sar['edges'][HAS].pop('src')),
    'src too large': _file('sar.pt', lambda sar: sar['edges'][CITES]['src'].add_(1000)),
    'dst too large': _file('sar.pt', lambda sar: sar['edges'][WRITES]['dst'].add_(1000)),
    'x of a type missing': _file('node_feats.pt', lambda c: c['author']['feats'].clear()),
    'features of a type missing': _file('node_feats.pt', lambda c: c.pop('author')),
    'features as a list': _file('node_feats.pt', lambda c: c.update(author=[1])),
    'feats as a list': _file('node_feats.pt', lambda c: c['author'].update(feats=[1])),
    'edge attribute missing': _file('edge_attrs.pt', lambda c: c[WRITES].pop('year')),
}


@pytest.mark.parametrize('what', BROKEN)
def test_broken_folder(tmp_path, what):
    partition_graph(hetero_graph(), 2, tmp_path / 'parts', method='random')
    pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    BROKEN[what](tmp_path / 'parts')
    with pytest.raises(ValueError, match=r'expected .*(META|part_[01]).*\(got '):
        pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))


def _load(roots: list[str]) -> str:
    return attempt(load_shard, roots[torch.distributed.get_rank()])


def test_another_partition_on_one_rank_raises_on_all(tmp_path):
    """Of the same graph, and of a homogeneous one."""
    root, other = tmp_path / 'parts', tmp_path / 'other'
    partition_graph(hetero_graph(), 2, root, method='metis')
    partition_graph(hetero_graph(), 2, other, method='random')
    homogeneous = cut(small_graph(), 2, tmp_path / 'homogeneous')
    for another in (other, homogeneous):
        outcomes = run_ranks(_load, 2, [str(root), str(another)])
        assert_all_raise(outcomes, 'ValueError', 'expected the same partition on all ranks')
    shutil.copytree(root, tmp_path / 'copy')
    assert run_ranks(_load, 2, [str(root), str(tmp_path / 'copy')]) == ['no error'] * 2
