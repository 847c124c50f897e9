"""What PyG promises of a folder of ``torch_geometric.distributed.Partitioner`` holds of ours."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

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
def written(request, tmp_path_factory) -> tuple[Data | HeteroData, Path]:
    (kind, time), options = request.param, {'num_graphs': 1, 'edge_dim': 2}
    torch.manual_seed(3)
    if kind == 'homo':
        data = FakeDataset(avg_num_nodes=90, **options)[0]
    else:
        data = FakeHeteroDataset(avg_num_nodes=60, avg_degree=4, **options)[0]
    for store in {'time': data.node_stores, 'edge_time': data.edge_stores}.get(time, ()):
        store[time] = torch.randint(10, (store.num_nodes if time == 'time' else store.num_edges,))
    root = tmp_path_factory.mktemp('partition') / 'parts'
    # Every part has nodes of every type.
    pyg_sar.partition_graph(data, 2, root, method='random')
    return data, root


def test_graph_stores(written):
    data, root = written
    for part in PARTS:
        store = LocalGraphStore.from_partition(str(root), part)
        assert store.is_sorted is False
        attrs = store.get_all_edge_attrs()
        assert {attr.edge_type for attr in attrs} == {each._key for each in data.edge_stores}
        for attr, edges in ((a, data[a.edge_type or 'edge_index']) for a in attrs):
            assert attr.is_sorted
            edge_index, edge_id = store.get_edge_index(attr), store.get_edge_id(attr)
            edge_pb, node_pb = store.edge_pb, store.node_pb
            if attr.edge_type is not None:
                edges = edges.edge_index
                edge_pb, node_pb = edge_pb[attr.edge_type], node_pb[attr.edge_type[2]]
            assert torch.equal(edge_index, edges[:, edge_id])
            assert (edge_index[1].diff() >= 0).all()
            assert edge_pb.numel() == edges.size(1)
            assert (edge_pb[edge_id] == part).all()
            assert (node_pb[edge_index[1]] == part).all()


def test_feature_stores(written):
    data, root = written
    feats = [LocalFeatureStore.from_partition(str(root), part) for part in PARTS]
    of_nodes = [(each, each._key, ['x', 'y'], each.num_nodes) for each in data.node_stores]
    of_edges = [
        (each, each._key or (None, None), ['edge_attr'], each.num_edges)
        for each in data.edge_stores
    ]
    for of, group, names, count in of_nodes + of_edges:
        ids = [store.get_global_id(group) for store in feats]
        assert torch.cat(ids).sort()[0].tolist() == list(range(count))
        for part, (own, store) in enumerate(zip(ids, feats, strict=True)):
            for name in {*names} & {*of}:
                get = partial(store.get_tensor_from_global_id, group_name=group, attr_name=name)
                found = store.get_tensor(group_name=group, attr_name=name, index=None)
                assert torch.equal(found, of[name][own])
                assert torch.equal(get(index=own.flip(0)), of[name][own.flip(0)])
            if 'x' in names:
                owners = store.node_feat_pb if group is None else store.node_feat_pb[group]
                assert (owners[own] == part).all()


def test_stores_without_features(tmp_path, make_graph):
    pyg_sar.partition_graph(make_graph('bare'), 2, tmp_path / 'out')
    store = LocalFeatureStore.from_partition(str(tmp_path / 'out'), 1)
    assert store.get_all_tensor_attrs() == []
    assert not store.has_edge_attr()


def test_samplers_by_time_find_no_times(written):
    """They would take the edges to be sorted by time."""
    store = LocalFeatureStore.from_partition(str(written[1]), 0)
    names = {attr.attr_name for attr in store.get_all_tensor_attrs()}
    assert not names & {'time', 'edge_time'}
