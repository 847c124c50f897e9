"""With all neighbours the same nodes and edges as PyG's loader, where torch_sparse is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import hetero_graph
from small_graphs import cut, small_graph
from torch_geometric import loader as pyg
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import pyg_sar
from pyg_sar import partition_graph

pytestmark = [
    pytest.mark.skipif(not WITH_TORCH_SPARSE or WITH_PYG_LIB, reason='asks torch_sparse'),
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'"),
]


def _edges(store: Any, src: torch.Tensor, dst: torch.Tensor) -> list[tuple[int, int, int]]:
    row, col = store.edge_index
    return sorted(zip(store.e_id.tolist(), src[row].tolist(), dst[col].tolist(), strict=True))


@pytest.mark.parametrize('kind', ['directional', 'induced'])
def test_batches_of_a_homogeneous_graph(tmp_path: Path, kind: str) -> None:
    graph = small_graph()
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 1, tmp_path / 'parts')))
    options = {'num_neighbors': [-1, -1], 'batch_size': 3, 'subgraph_type': kind}
    ours = list(pyg_sar.NeighborLoader(data, input_nodes=data.train_mask, **options))
    ids = data.n_id[data.train_mask]
    theirs = list(pyg.NeighborLoader(graph, input_nodes=ids, **options))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.n_id[: one.batch_size], other.n_id[: other.batch_size])
        assert sorted(one.n_id.tolist()) == sorted(other.n_id.tolist())
        assert _edges(one, one.n_id, one.n_id) == _edges(other, other.n_id, other.n_id)
        for name in ('x', 'y', 'pos', 'edge_attr'):
            assert one[name].shape == other[name].shape
        assert set(one.keys()) - set(other.keys()) == {
            'label_range',
            'num_nodes',
            'num_nodes_total',
            'num_sampled_nodes',
            *(['num_sampled_edges'] * (kind != 'induced')),
        }
        assert set(other.keys()) <= set(one.keys())


@pytest.mark.parametrize('kind', ['directional', 'induced'])
def test_batches_of_a_heterogeneous_graph(tmp_path: Path, kind: str) -> None:
    graph = hetero_graph()
    partition_graph(graph, 1, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    options = {'num_neighbors': [-1, -1], 'batch_size': 4, 'subgraph_type': kind}
    ours = list(pyg_sar.NeighborLoader(data, input_nodes='paper', **options))
    theirs = list(pyg.NeighborLoader(graph, input_nodes=('paper', data['paper'].n_id), **options))
    for one, other in zip(ours, theirs, strict=True):
        for key in graph.node_types:
            assert sorted(one[key].n_id.tolist()) == sorted(other[key].n_id.tolist())
        for key in graph.edge_types:
            ends = (key[0], key[2])
            got = _edges(one[key], *(one[end].n_id for end in ends))
            assert got == _edges(other[key], *(other[end].n_id for end in ends))
