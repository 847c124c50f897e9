"""With all neighbours the same nodes, edges and links as PyG's loader, with torch_sparse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import CITES, WRITES, hetero_graph
from small_graphs import cut, small_graph
from test_neighbor_oracle import _edges
from torch import Tensor
from torch_geometric import loader as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import pyg_sar
from pyg_sar import partition_graph

pytestmark = [
    pytest.mark.skipif(not WITH_TORCH_SPARSE or WITH_PYG_LIB, reason='asks torch_sparse'),
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'"),
]


def _links(batch: Any, store: Any, ends: tuple[Tensor, Tensor]) -> list[Any]:
    """Of the links that are given: their ends, labels and places."""
    num = store.input_id.numel()
    pairs = [end[row[:num]].tolist() for end, row in zip(ends, store.edge_label_index, strict=True)]
    values = [
        store[name][:num].tolist() for name in ('edge_label', 'edge_label_time') if name in store
    ]
    return [*pairs, *values, store.input_id.tolist()]


@pytest.mark.parametrize('kind', ['directional', 'induced'])
@pytest.mark.parametrize('label', [None, torch.arange(30) % 4])
def test_links_of_a_homogeneous_graph(tmp_path: Path, kind: str, label: Tensor | None) -> None:
    graph = small_graph()
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 1, tmp_path / 'parts')))
    pairs = graph.edge_index[:, torch.arange(30) * 5]
    options: dict[str, Any] = {'num_neighbors': [-1, -1], 'batch_size': 4, 'subgraph_type': kind}
    options |= {'edge_label_index': pairs, 'edge_label': label}
    ours = list(pyg_sar.LinkNeighborLoader(data, **options))
    theirs = list(pyg.LinkNeighborLoader(graph, **options))
    assert len(ours) == len(theirs) == 8
    for one, other in zip(ours, theirs, strict=True):
        assert sorted(one.n_id.tolist()) == sorted(other.n_id.tolist())
        assert _edges(one, one.n_id, one.n_id) == _edges(other, other.n_id, other.n_id)
        assert _links(one, one, (one.n_id,) * 2) == _links(other, other, (other.n_id,) * 2)
        assert set(other.keys()) <= set(one.keys())


@pytest.mark.parametrize('relation', [WRITES, CITES])
@pytest.mark.parametrize('kind', ['directional', 'induced'])
def test_links_of_a_heterogeneous_graph(tmp_path: Path, kind: str, relation: Any) -> None:
    graph = hetero_graph()
    partition_graph(graph, 1, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    options: dict[str, Any] = {'num_neighbors': [-1, -1], 'batch_size': 6, 'subgraph_type': kind}
    options['edge_label_index'] = relation, graph[relation].edge_index
    ours = list(pyg_sar.LinkNeighborLoader(data, **options))
    theirs = list(pyg.LinkNeighborLoader(graph, **options))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for key in graph.node_types:
            assert sorted(one[key].n_id.tolist()) == sorted(other[key].n_id.tolist())
        for key in graph.edge_types:
            ends = (key[0], key[2])
            got = _edges(one[key], *(one[end].n_id for end in ends))
            assert got == _edges(other[key], *(other[end].n_id for end in ends))
        assert _links_of(one, relation) == _links_of(other, relation)


def _links_of(batch: HeteroData, relation: Any) -> list[Any]:
    ends = batch[relation[0]].n_id, batch[relation[2]].n_id
    return _links(batch, batch[relation], ends)


@pytest.mark.parametrize('sampling', ['binary', 'triplet', {'mode': 'binary', 'amount': 0.3}])
def test_shapes_of_negatives(tmp_path: Path, sampling: Any) -> None:
    graph = small_graph()
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 1, tmp_path / 'parts')))
    given = {'mode': sampling} if isinstance(sampling, str) else sampling
    options: dict[str, Any] = {'num_neighbors': [-1], 'batch_size': 7}
    pairs = graph.edge_index
    ours = list(
        pyg_sar.LinkNeighborLoader(data, edge_label_index=pairs, neg_sampling=given, **options)
    )
    theirs = list(
        pyg.LinkNeighborLoader(graph, edge_label_index=pairs, neg_sampling=given, **options)
    )
    for one, other in zip(ours, theirs, strict=True):
        _same_forms(one, other)


def _same_forms(one: Data, other: Data) -> None:
    names = ('edge_label_index', 'edge_label', 'src_index', 'dst_pos_index', 'dst_neg_index')
    for name in names:
        assert (name in one) == (name in other)
        if name in one:
            assert one[name].shape == other[name].shape
            assert one[name].dtype == other[name].dtype
    if 'edge_label' in one:
        assert torch.equal(one.edge_label, other.edge_label)
