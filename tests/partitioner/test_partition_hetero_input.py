"""Heterogeneous graphs from files, and those that are refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hetero_graphs import CITES, NUM_NODES, REVIEWS, WRITES, assignment, hetero_graph
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import HeteroData

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.partition import main
from pyg_sar.partitioner.sources.sources import load_source

PARTS = 3


@pytest.fixture(params=['metis', 'random', 'uneven'])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    method = assignment(PARTS) if request.param == 'uneven' else request.param
    partition_graph(hetero_graph(), PARTS, tmp_path / 'out', method=method)
    return tmp_path / 'out'


def _assert_same(a: HeteroData, b: HeteroData) -> None:
    a_dict, b_dict = a.to_dict(), b.to_dict()
    assert a_dict.keys() == b_dict.keys()
    for key, store in b_dict.items():
        assert a_dict[key].keys() == store.keys(), key
        for name, value in store.items():
            if isinstance(value, Tensor):
                assert a_dict[key][name].dtype == value.dtype
                assert torch.equal(a_dict[key][name], value)
            else:
                assert a_dict[key][name] == value


def test_saved_file(tmp_path):
    data = hetero_graph()
    assert data['paper'].is_node_attr('x')  # leaves a defaultdict in its storages
    for i, content in enumerate((data, data.to_dict(), (data.to_dict(), None, HeteroData))):
        torch.save(content, tmp_path / f'{i}.pt')
        _assert_same(load_source(tmp_path / f'{i}.pt'), data)


def test_command_line(tmp_path, capsys):
    torch.save(hetero_graph(), tmp_path / 'data.pt')
    code = main([str(tmp_path / 'data.pt'), str(tmp_path / 'out'), '--num-parts', '2'])
    assert code == 0
    assert 'node types' in capsys.readouterr().out
    assert pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out')).num_nodes == sum(NUM_NODES.values())


def test_npz(tmp_path):
    np.savez(
        tmp_path / 'a.npz',
        **{
            'edge|a|to|b': np.array([[0, 1], [1, 0]], dtype=np.int32),
            'edge_attr|a|to|b': np.ones((2, 3)),
            'x|a_data': np.array([1.0, 2.0], dtype=np.float32),
            'x|a_indices': np.array([0, 2]),
            'x|a_indptr': np.array([0, 1, 2]),
            'x|a_shape': np.array([2, 3]),
            'y|b': np.array([1, 0, 2]),
            'num_nodes|a': np.int64(2),
            'names|a': np.array(['p', 'q']),
        },
    )
    with pytest.warns(UserWarning, match=r'names\|a'):
        data = load_source(tmp_path / 'a.npz')
    assert data.edge_types == [('a', 'to', 'b')]
    assert data['a', 'to', 'b'].edge_index.tolist() == [[0, 1], [1, 0]]
    assert data['a', 'to', 'b'].edge_index.dtype == torch.int64
    assert data['a'].x.tolist() == [[1, 0, 0], [0, 0, 2]]
    assert data['b'].y.tolist() == [1, 0, 2]
    assert data['a', 'to', 'b'].edge_attr.shape == (2, 3)
    partition_graph(data, 2, tmp_path / 'out')
    assert pyg_sar.local(pyg_sar.load_shard(tmp_path / 'out'))['a'].x.shape == (2, 3)


@pytest.mark.slow
def test_wordnet_hetero():
    data = load_source('wordnet-hetero')
    assert data.num_nodes_dict == {'synset': 117_659, 'word': 147_306}
    assert len(data.edge_types) == 19
    assert data.num_edges == 442_334
    assert data['synset'].x.shape == (117_659, 512)
    assert data['synset'].num_classes == 45
    assert data.validate()
    undirected = T.ToUndirected(merge=False)(data)
    assert len(undirected.edge_types) == 38


def _without(path: tuple, data: HeteroData) -> HeteroData:
    del data[path[0]][path[1]]
    return data


def _set(key: object, name: str, value: object) -> HeteroData:
    data = hetero_graph()
    data[key][name] = value
    return data


def _renamed(*relations: tuple[str, str, str]) -> HeteroData:
    data = HeteroData()
    for rel in relations:
        for end in (rel[0], rel[2]):
            data[end].num_nodes = 3
        data[rel].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    return data


REFUSED = {
    'no edge_index': (
        lambda: {'data': _without((CITES, 'edge_index'), hetero_graph())},
        f"expected a tensor 'edge_index' in {CITES} (got NoneType)",
    ),
    'float edge_index': (
        lambda: {'data': _set(CITES, 'edge_index', torch.zeros(2, 3))},
        f"'edge_index' of {CITES} must hold integers",
    ),
    'source too large': (
        lambda: {'data': _set(WRITES, 'edge_index', torch.tensor([[25], [0]]))},
        f"'edge_index' of {WRITES} must hold ids below the number of nodes, 25 (got 25)",
    ),
    'destination too large': (
        lambda: {'data': _set(WRITES, 'edge_index', torch.tensor([[0], [34]]))},
        f"'edge_index' of {WRITES} must hold ids below the number of nodes, 34 (got 34)",
    ),
    'rows of x': (
        lambda: {'data': _set('paper', 'train_mask', torch.zeros(33))},
        "'train_mask' of 'paper' must have one row per node, 34",
    ),
    'rows of edge_attr': (
        lambda: {'data': _set(WRITES, 'edge_attr', torch.zeros(3, 2))},
        f"'edge_attr' of {WRITES} must have one row per edge, 74",
    ),
    'reserved name': (
        lambda: {'data': _set('paper', 'n_id', torch.zeros(34))},
        "(got 'n_id' of 'paper')",
    ),
    'unknown end': (
        lambda: {'data': _set(('paper', 'in', 'venue'), 'edge_index', torch.zeros(2, 1).long())},
        "expected the nodes of type 'venue' in 'data'",
    ),
    'a name no file can have': (
        lambda: {'data': _renamed(('a/b', 'to', 'c'))},
        "expected names of types that a file may have (got 'a/b')",
    ),
    'two relations of one name': (
        lambda: {'data': _renamed(('a', 'b__c', 'd'), ('a__b', 'c', 'd'))},
        'expected names of relations that differ',
    ),
    'NaN': (
        lambda: {'data': _set('author', 'x', torch.full((25, 1), torch.nan)), 'check_nan': True},
        "expected no NaN in 'x' of 'author' (got 25 NaN values)",
    ),
    'parts of some types': (
        lambda: {'method': {'paper': torch.zeros(34).long()}},
        "expected parts of the node types ['paper', 'author', 'term', 'lonely'] in 'method'",
    ),
    'part ids of another length': (
        lambda: {'method': assignment(2) | {'term': torch.zeros(3).long()}},
        "expected one part id per node, shape [7], in 'method' of 'term' (got shape [3])",
    ),
    'too many parts': (
        lambda: {'num_parts': 76},
        "'num_parts' must not exceed the number of nodes (got 76 and 75)",
    ),
    'split without labels': (
        lambda: {'data': _renamed(('a', 'to', 'b')), 'split': '0.6/0.2/0.2'},
        "'split' needs a node type with labels 'y'",
    ),
}


@pytest.mark.filterwarnings('ignore:There exist type names')
@pytest.mark.parametrize('case', REFUSED)
def test_refused(tmp_path, case):
    make, message = REFUSED[case]
    options = {'data': hetero_graph(), 'num_parts': 2, **make()}
    with pytest.raises(ValueError, match=re.escape(message)):
        partition_graph(root=tmp_path / 'out', **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_dropped_is_named_with_its_type(tmp_path):
    data = hetero_graph()
    data['paper'].table = torch.zeros(5, 2)
    with pytest.warns(UserWarning, match=r"dropped attributes of 'paper'.*table \(torch.float32"):
        partition_graph(data, 2, tmp_path / 'out')


def test_empty_relation_has_its_attributes(root):
    loaded = pyg_sar.local(pyg_sar.load_shard(root))
    assert loaded[REVIEWS].edge_attr.shape == (0, 5)
    assert loaded[REVIEWS].edge_attr.dtype == torch.float32


def test_warnings_point_at_the_caller(tmp_path):
    for key in ('paper', None):
        data = hetero_graph()
        (data if key is None else data[key])['table'] = torch.zeros(5, 2)
        with pytest.warns(UserWarning, match='dropped attributes of') as caught:
            partition_graph(data, 2, tmp_path / f'{key}')
        assert [warning.filename for warning in caught] == [__file__]
