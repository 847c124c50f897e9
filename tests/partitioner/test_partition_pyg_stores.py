"""torch_geometric.distributed's own stores read what we write."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from pyg_sar.partitioner import partition_graph, sub_parts

with warnings.catch_warnings():
    warnings.simplefilter('ignore', DeprecationWarning)  # PyG announces the module's end.
    from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore

NUM_PARTS = 3


@pytest.fixture(params=['cache', 'source'])
def root(
    graph: Data, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setattr(sub_parts, 'ROWS', 4)
    partition_graph(graph, NUM_PARTS, tmp_path / 'out', order=request.param)
    return tmp_path / 'out'


def test_graph_store(root, graph):
    seen = []
    for part in range(NUM_PARTS):
        store = LocalGraphStore.from_partition(str(root), part)
        assert (store.num_partitions, store.partition_idx, store.is_sorted) == (
            NUM_PARTS,
            part,
            True,
        )
        (attr,) = store.get_all_edge_attrs()
        assert attr.size == (50, 50)
        edge_index, edge_id = store.get_edge_index(attr), store.get_edge_id(attr)
        assert torch.equal(edge_index, graph.edge_index[:, edge_id])
        assert (edge_index[1].diff() >= 0).all()
        assert (store.node_pb[edge_index[1]] == part).all()
        assert (store.edge_pb[edge_id] == part).all()
        seen.append(edge_id)
    assert torch.cat(seen).sort()[0].tolist() == list(range(graph.num_edges))


def _lookup(store: Any, index: torch.Tensor, *, nodes: bool) -> torch.Tensor:
    group, name = (None, 'x') if nodes else ((None, None), 'edge_attr')
    return store.get_tensor_from_global_id(group_name=group, attr_name=name, index=index)


def test_feature_store_by_global_id(root, graph):
    for part in range(NUM_PARTS):
        store = LocalFeatureStore.from_partition(str(root), part)
        assert store.has_edge_attr()
        nodes = (store.node_feat_pb == part).nonzero().view(-1).flip(0)
        assert torch.equal(_lookup(store, nodes, nodes=True), graph.x[nodes])
        edges = (store.edge_feat_pb == part).nonzero().view(-1).flip(0)
        assert torch.equal(_lookup(store, edges, nodes=False), graph.edge_attr[edges])
        ids = store.get_global_id((None, None))
        own = store.get_tensor(group_name=(None, None), attr_name='edge_attr', index=None)
        assert torch.equal(own, graph.edge_attr[ids])


def test_without_features(tmp_path, make_graph):
    partition_graph(make_graph('bare'), 2, tmp_path / 'out')
    store = LocalFeatureStore.from_partition(str(tmp_path / 'out'), 1)
    assert store.get_all_tensor_attrs() == []
    assert not store.has_edge_attr()
