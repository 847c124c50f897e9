"""With all neighbours the nodes, edges and links of PyG's loaders, with torch_sparse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import cut_of
from hetero_graphs import CITES, WRITES, hetero_graph
from small_graphs import small_graph
from torch import Tensor
from torch_geometric import loader as pyg
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import pyg_sar

pytestmark = [
    pytest.mark.skipif(not WITH_TORCH_SPARSE or WITH_PYG_LIB, reason='asks torch_sparse'),
    pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'"),
]
KINDS = ['directional', 'induced']


def _graph(is_typed: bool) -> tuple[Any, Any]:
    """The graph, and all of its parts in one process."""
    make = hetero_graph if is_typed else small_graph
    return make(), pyg_sar.load_shard(cut_of(make, 1, 'random'))


def _of(batch: Any, key: Any) -> Any:
    return batch if key is None else batch[key]


def _types(batch: Any) -> tuple[list[Any], list[Any]]:
    typed = hasattr(batch, 'node_types')
    return (batch.node_types, batch.edge_types) if typed else ([None], [(None, None, None)])


def _compare(one: Any, other: Any) -> None:
    """Nodes and edges, in any order."""
    node_types, edge_types = _types(other)
    for key in node_types:
        assert sorted(_of(one, key).n_id.tolist()) == sorted(_of(other, key).n_id.tolist())
    for key in edge_types:
        assert _edges(one, key) == _edges(other, key)


def _edges(batch: Any, key: Any) -> list[tuple[int, ...]]:
    store = batch if key[0] is None else batch[key]
    src, dst = (_of(batch, end).n_id for end in (key[0], key[2]))
    row, col = store.edge_index
    return sorted(zip(store.e_id.tolist(), src[row].tolist(), dst[col].tolist(), strict=True))


@pytest.mark.parametrize('of_type', [None, 'paper'])
@pytest.mark.parametrize('kind', KINDS)
def test_batches(kind: str, of_type: str | None) -> None:
    graph, data = _graph(of_type is not None)
    options = {'num_neighbors': [-1, -1], 'batch_size': 3, 'subgraph_type': kind}
    given: Any = of_type or data.train_mask
    ids: Any = (of_type, data[of_type].n_id) if of_type else data.n_id[data.train_mask]
    ours = list(pyg_sar.NeighborLoader(data, input_nodes=given, **options))
    theirs = list(pyg.NeighborLoader(graph, input_nodes=ids, **options))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        _compare(one, other)
        if of_type:
            continue
        assert torch.equal(one.n_id[: one.batch_size], other.n_id[: other.batch_size])
        for name in ('x', 'y', 'pos', 'edge_attr'):
            assert one[name].shape == other[name].shape
        more = {'label_range', 'num_nodes', 'num_nodes_total', 'num_sampled_nodes'}
        more |= {'num_sampled_edges'} if kind != 'induced' else set()
        assert set(one.keys()) - set(other.keys()) == more
        assert set(other.keys()) <= set(one.keys())


def _links(batch: Any, key: Any) -> list[Any]:
    """Of the links that are given: their ends, labels and places."""
    store = batch if key is None else batch[key]
    num, types = store.input_id.numel(), (None, None) if key is None else (key[0], key[2])
    pairs = zip((_of(batch, end).n_id for end in types), store.edge_label_index, strict=True)
    names = [name for name in ('edge_label', 'edge_label_time') if name in store]
    found = [ids[row[:num]] for ids, row in pairs] + [store[name][:num] for name in names]
    return [value.tolist() for value in (*found, store.input_id)]


@pytest.mark.parametrize('relation', [None, WRITES, CITES])
@pytest.mark.parametrize('label', [None, torch.arange(30) % 4])
@pytest.mark.parametrize('kind', KINDS)
def test_links(kind: str, label: Tensor | None, relation: Any) -> None:
    graph, data = _graph(relation is not None)
    options: dict[str, Any] = {'num_neighbors': [-1, -1], 'batch_size': 4, 'subgraph_type': kind}
    pairs = _of(graph, relation).edge_index[:, torch.arange(30) * 2]
    options |= {'edge_label_index': (relation, pairs) if relation else pairs, 'edge_label': label}
    ours = list(pyg_sar.LinkNeighborLoader(data, **options))
    theirs = list(pyg.LinkNeighborLoader(graph, **options))
    assert len(ours) == len(theirs) == 8
    for one, other in zip(ours, theirs, strict=True):
        _compare(one, other)
        assert _links(one, relation) == _links(other, relation)
        assert set(other.keys()) <= set(one.keys())


@pytest.mark.parametrize('sampling', ['binary', 'triplet', {'mode': 'binary', 'amount': 0.3}])
def test_shapes_of_negatives(sampling: Any) -> None:
    graph, data = _graph(False)
    options: dict[str, Any] = {'num_neighbors': [-1], 'batch_size': 7}
    options['neg_sampling'] = {'mode': sampling} if isinstance(sampling, str) else sampling
    ours = pyg_sar.LinkNeighborLoader(data, edge_label_index=graph.edge_index, **options)
    theirs = pyg.LinkNeighborLoader(graph, edge_label_index=graph.edge_index, **options)
    names = ('edge_label_index', 'edge_label', 'src_index', 'dst_pos_index', 'dst_neg_index')
    for one, other in zip(list(ours), list(theirs), strict=True):
        for name in names:
            assert (name in one) == (name in other)
            if name in one:
                assert (one[name].shape, one[name].dtype) == (other[name].shape, other[name].dtype)
        if 'edge_label' in one:
            assert torch.equal(one.edge_label, other.edge_label)
