"""What PyG promises of a folder of ``torch_geometric.distributed.Partitioner`` holds of ours."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import FakeDataset, FakeHeteroDataset

import pyg_sar

with warnings.catch_warnings():
    warnings.simplefilter('ignore', DeprecationWarning)  # PyG announces the module's end.
    from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore

PARTS = (0, 1)
KINDS = ('homo', 'hetero')
TIMES = (None, 'time', 'edge_time')


@pytest.fixture(scope='module', params=[(k, t) for k in KINDS for t in TIMES], ids=str)
def written(request, tmp_path_factory) -> tuple[Data | HeteroData, Path, str | None]:
    kind, time = request.param
    torch.manual_seed(3)
    options = {'num_graphs': 1, 'edge_dim': 2}
    data = FakeDataset(avg_num_nodes=90, **options)[0] if kind == 'homo' else None
    if data is None:
        data = FakeHeteroDataset(avg_num_nodes=60, avg_degree=4, **options)[0]
    for store in _stores(data, time):
        count = store.num_nodes if time == 'time' else store.num_edges
        store[time] = torch.randint(10, (count,))
    root = tmp_path_factory.mktemp('partition') / 'parts'
    # Every part has nodes of every type.
    pyg_sar.partition_graph(data, 2, root, method='random')
    return data, root, time


def _stores(data: Data | HeteroData, time: str | None) -> list[Any]:
    if time is None:
        return []
    if isinstance(data, Data):
        return [data]
    return data.node_stores if time == 'time' else data.edge_stores


def _keys(data: Data | HeteroData, *, nodes: bool) -> list[Any]:
    if isinstance(data, Data):
        return [None]
    return data.node_types if nodes else data.edge_types


def _of(content: Any, key: Any) -> Any:
    return content if key is None else content[key]


def test_stores_sort_the_edges(written):
    _, root, _ = written
    for part in PARTS:
        store = LocalGraphStore.from_partition(str(root), part)
        assert store.is_sorted is False
        for attr in store.get_all_edge_attrs():
            assert attr.is_sorted
            assert (store.get_edge_index(attr)[1].diff() >= 0).all()


def test_stores(written):
    data, root, _ = written
    graphs = [LocalGraphStore.from_partition(str(root), part) for part in PARTS]
    feats = [LocalFeatureStore.from_partition(str(root), part) for part in PARTS]
    for part, store in enumerate(graphs):
        attrs = store.get_all_edge_attrs()
        assert {attr.edge_type for attr in attrs} == {*_keys(data, nodes=False)}
        for attr in attrs:
            edges = _of(data, attr.edge_type).edge_index
            edge_index, edge_id = store.get_edge_index(attr), store.get_edge_id(attr)
            assert torch.equal(edge_index, edges[:, edge_id])
            edge_pb, node_pb = store.edge_pb, store.node_pb
            if attr.edge_type is not None:
                edge_pb, node_pb = edge_pb[attr.edge_type], node_pb[attr.edge_type[2]]
            assert edge_pb.numel() == edges.size(1)
            assert (edge_pb[edge_id] == part).all()
            assert (node_pb[edge_index[1]] == part).all()
    for nodes, names in ((False, ['edge_attr']), (True, ['x', 'y'])):
        for key in _keys(data, nodes=nodes):
            group = (None, None) if not nodes and key is None else key
            ids = [store.get_global_id(group) for store in feats]
            for name in [name for name in names if name in _of(data, key)]:
                for own, store in zip(ids, feats, strict=True):
                    get = partial(store.get_tensor_from_global_id, group_name=group, attr_name=name)
                    found = store.get_tensor(group_name=group, attr_name=name, index=None)
                    assert torch.equal(found, _of(data, key)[name][own])
                    assert torch.equal(get(index=own.flip(0)), _of(data, key)[name][own.flip(0)])
            if nodes:
                for part, store in enumerate(feats):
                    owners = store.node_feat_pb if key is None else store.node_feat_pb[key]
                    assert (owners[ids[part]] == part).all()
            count = _of(data, key).num_nodes if nodes else _of(data, key).num_edges
            assert torch.cat(ids).sort()[0].tolist() == list(range(count))


def test_stores_without_features(tmp_path, make_graph):
    pyg_sar.partition_graph(make_graph('bare'), 2, tmp_path / 'out')
    store = LocalFeatureStore.from_partition(str(tmp_path / 'out'), 1)
    assert store.get_all_tensor_attrs() == []
    assert not store.has_edge_attr()


def test_samplers_by_time_find_no_times(written):
    """They would take the edges to be sorted by time."""
    _, root, _ = written
    store = LocalFeatureStore.from_partition(str(root), 0)
    names = {attr.attr_name for attr in store.get_all_tensor_attrs()}
    assert not names & {'time', 'edge_time'}
