"""Graphs from files and by name."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.on_disk.mapped import Scratch
from pyg_sar.partitioner.sources.sources import load_source

EDGES = np.array([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
X = np.array([[1.0, 0, 0], [0, 0, 2], [0, 0, 0], [3, 4, 0]], dtype=np.float32)
CSR = {
    'x_data': np.array([1.0, 2, 3, 4], dtype=np.float32),
    'x_indices': np.array([0, 2, 0, 1], dtype=np.int32),
    'x_indptr': np.array([0, 1, 2, 2, 4]),
    'x_shape': np.array([4, 3]),
}


def _assert_same_data(a: Data, b: Data) -> None:
    a_dict, b_dict = a.to_dict(), b.to_dict()
    assert sorted(a_dict) == sorted(b_dict)
    for key, value in b_dict.items():
        if isinstance(value, torch.Tensor):
            assert a_dict[key].dtype == value.dtype
            assert torch.equal(a_dict[key], value)
        else:
            assert a_dict[key] == value


# .pt


def test_saved_data(tmp_path, graph):
    graph.num_classes = 4
    graph.names = ['a', 'b']
    torch.save(graph, tmp_path / 'data.pt')
    _assert_same_data(load_source(tmp_path / 'data.pt'), graph)


def test_saved_data_that_remembers_its_attributes(tmp_path, graph):
    """is_node_attr leaves a defaultdict in the Data, which torch's unpickler refuses to fill."""
    assert graph.is_node_attr('x')
    torch.save(graph, tmp_path / 'data.pt')
    loaded = load_source(tmp_path / 'data.pt')
    _assert_same_data(loaded, graph)
    assert loaded.is_edge_attr('edge_weight')


def test_saved_dict(tmp_path, graph):
    torch.save(graph.to_dict(), tmp_path / 'data.pt')
    _assert_same_data(load_source(str(tmp_path / 'data.pt')), graph)


def test_saved_dataset_of_one_graph(tmp_path, graph):
    """What torch_geometric.data.InMemoryDataset leaves in processed/data.pt."""
    torch.save((graph.to_dict(), None, Data), tmp_path / 'data.pt')
    _assert_same_data(load_source(tmp_path / 'data.pt'), graph)
    torch.save((graph.to_dict(), {'x': torch.tensor([0, 1])}, Data), tmp_path / 'many.pt')
    with pytest.raises(ValueError, match='got a dataset of several graphs'):
        load_source(tmp_path / 'many.pt')


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support is in beta')
def test_saved_special_tensors(tmp_path, graph, check_partition):
    special = graph.clone()
    special.edge_index = EdgeIndex(graph.edge_index, sparse_size=(50, 50))
    special.x = graph.x.to_sparse_csr()
    torch.save(special, tmp_path / 'data.pt')
    partition_graph(load_source(tmp_path / 'data.pt'), 3, tmp_path / 'out')
    check_partition(tmp_path / 'out', graph, 3)


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize('wrap', [lambda x: x, lambda x: {'edge_index': x}, lambda x: Data(a=x)])
def test_hostile_pickle_is_refused(tmp_path, wrap):
    torch.save(wrap(_Hostile(tmp_path / 'ran')), tmp_path / 'data.pt')
    with pytest.raises(ValueError, match=r"got a pickle that needs '\w+\.mkdir'"):
        load_source(tmp_path / 'data.pt')
    assert not (tmp_path / 'ran').exists()
    (tmp_path / 'plain.pt').write_bytes(pickle.dumps(wrap(_Hostile(tmp_path / 'ran'))))
    with pytest.raises(ValueError, match=r'plain\.pt'):
        load_source(tmp_path / 'plain.pt')
    assert not (tmp_path / 'ran').exists()


def test_allowed_classes_are_put_back(tmp_path, graph):
    torch.save(graph, tmp_path / 'good.pt')
    torch.save(_Hostile(tmp_path), tmp_path / 'bad.pt')
    with torch.serialization.safe_globals([_Hostile]):
        before = set(torch.serialization.get_safe_globals())
        load_source(tmp_path / 'good.pt')
        assert set(torch.serialization.get_safe_globals()) == before
        with pytest.raises(ValueError, match='pickle'):
            load_source(tmp_path / 'bad.pt')
        assert set(torch.serialization.get_safe_globals()) == before


def test_saved_something_else(tmp_path):
    for content, message in (
        (torch.ones(3), 'got a Tensor'),
        ([1, 2], 'got a list'),
        ({'x': torch.ones(2)}, "got a dict without a tensor 'edge_index': ['x']"),
        ({'edge_index': [[0], [1]]}, "got a dict without a tensor 'edge_index'"),
    ):
        torch.save(content, tmp_path / 'data.pt')
        with pytest.raises(ValueError, match=re.escape(message)):
            load_source(tmp_path / 'data.pt')


def test_adj_t_alone_is_told_what_to_do(tmp_path):
    torch.save(Data(adj_t=torch.eye(4).to_sparse(), num_nodes=4), tmp_path / 'data.pt')
    with pytest.raises(ValueError, match='got a sparse adjacency matrix; convert it'):
        partition_graph(load_source(tmp_path / 'data.pt'), 2, tmp_path / 'out')


# .npz


def _npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_dense(tmp_path):
    path = _npz(
        tmp_path / 'a.npz',
        edge_index=EDGES,
        x=X,
        y=np.array([0, 1, -1, 0]),
        train_mask=np.array([True, False, False, True]),
        size=np.ones((4, 2)),
        edge_weight=np.arange(5.0),
        num_classes=np.int64(2),
    )
    expected = Data(
        x=torch.tensor(X),
        edge_index=torch.tensor(EDGES),
        y=torch.tensor([0, 1, -1, 0]),
        train_mask=torch.tensor([True, False, False, True]),
        size=torch.ones(4, 2, dtype=torch.float64),
        edge_weight=torch.arange(5.0, dtype=torch.float64),
        num_classes=2,
        num_nodes=4,
    )
    _assert_same_data(load_source(path), expected)


def test_npz_csr(tmp_path, check_partition):
    path = _npz(tmp_path / 'a.npz', edge_index=EDGES, **CSR)
    data = load_source(path)
    assert torch.equal(data.x, torch.tensor(X))
    sparse = load_source(path, scratch=Scratch())
    assert sparse.x.is_sparse
    assert torch.equal(sparse.x.to_dense(), torch.tensor(X))
    partition_graph(sparse, 2, tmp_path / 'out')
    check_partition(tmp_path / 'out', data, 2)


def test_npz_index_to_mask(tmp_path):
    path = _npz(
        tmp_path / 'a.npz',
        edge_index=EDGES,
        x=X,
        train_idx=np.array([3, 0]),
        val_idx=np.array([1], dtype=np.int32),
        test_idx=np.array([], dtype=np.int64),
    )
    data = load_source(path)
    assert data.train_mask.tolist() == [True, False, False, True]
    assert data.val_mask.tolist() == [False, True, False, False]
    assert data.test_mask.tolist() == [False] * 4
    assert 'train_idx' not in data


def test_npz_dropped_arrays_are_named(tmp_path):
    path = _npz(
        tmp_path / 'a.npz',
        edge_index=EDGES,
        x=X,
        edge_index_directed=EDGES[:, :3],
        edge_type_directed=np.arange(3),
        class_names=np.array(['a', 'b']),
        node_names=np.array(['a', 'b', 'c', 'd']),
    )
    with pytest.warns(UserWarning, match=r'dropped from .*a\.npz') as warned:
        data = load_source(path)
    message = str(warned[0].message)
    for name in ('edge_index_directed', 'edge_type_directed', 'class_names', 'node_names'):
        assert f'{name} (' in message
    assert sorted(data.keys()) == ['edge_index', 'num_nodes', 'x']


def test_npz_of_two_nodes_drops_edge_index_directed(tmp_path):
    """[2, E'] has one row per node, if there are two."""
    edges = np.array([[0, 1], [1, 0]])
    path = _npz(tmp_path / 'a.npz', edge_index=edges, num_nodes=2, edge_index_directed=edges)
    with pytest.warns(UserWarning, match='edge_index_directed'):
        assert sorted(load_source(path).keys()) == ['edge_index', 'num_nodes']


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'edge_index': None}, "expected the array 'edge_index'"),
        ({'edge_index': np.int64(3)}, "expected a tensor 'edge_index'"),
        ({'edge_index': EDGES.T}, 'must be a dense tensor of shape [2, E]'),
        ({'x': X}, "expected either 'x' or all of"),
        ({'x_shape': None}, "expected either 'x' or all of"),
        ({'x_shape': np.array([5, 3])}, 'expected a CSR matrix'),
        ({'x_indptr': np.array([0, 1, 3, 2, 4])}, "'x_indptr' of"),
        ({'x_indptr': np.array([0, 1, 2, 2, 5])}, 'must ascend from 0 to 4'),
        ({'x_shape': np.array([4, 2**40])}, 'matrix fits into memory (got 4 x 1099511627776)'),
        ({'x_indices': np.array([0, 3, 0, 1])}, 'must lie in [0, 3) (got 0 to 3)'),
        ({'train_idx': np.array([4])}, "'train_idx' of"),
        ({'train_idx': np.array([0.5])}, "expected a list of node ids in 'train_idx'"),
        ({'train_idx': [0], 'train_mask': [True] * 4}, "one of 'train_idx' and 'train_mask'"),
        ({'y': np.array(['a', 'b', 'c', 'd'])}, "expected numbers in 'y'"),
        ({'y': np.array([{}] * 4)}, 'expected an .npz file of plain arrays'),
    ],
)
def test_npz_refused(tmp_path, change, message):
    arrays = {'edge_index': EDGES, **CSR, **change}
    kept = {name: value for name, value in arrays.items() if value is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        load_source(_npz(tmp_path / 'a.npz', **kept))


def test_files_that_are_no_archive(tmp_path):
    for name in ('a.npz', 'a.pt'):
        for content in (b'', b'something else', pickle.dumps({'edge_index': 1})):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match=re.escape(name)):
                load_source(tmp_path / name)
    np.save(tmp_path / 'single.npy', EDGES)
    (tmp_path / 'single.npy').rename(tmp_path / 'single.npz')
    with pytest.raises(ValueError, match='single'):
        load_source(tmp_path / 'single.npz')


# Names


def test_unknown_names(tmp_path):
    (tmp_path / 'a.txt').touch()
    for name, message in (
        ('cora', 'or one of wordnet-hetero, wordnet-noun, synthetic:arxiv, synthetic:products'),
        ('cora', "(got 'cora', no such file)"),
        ('no/graph.csv', "(got 'no/graph.csv', no such file)"),
        (str(tmp_path), 'a folder'),
        (str(tmp_path / 'a.txt'), 'expected a .pt, .npz, .parquet or .csv file, a folder'),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            load_source(name)


def test_wordnet_noun():
    data = load_source('wordnet-noun')
    assert sorted(data.keys()) == ['edge_index', 'num_classes', 'num_nodes', 'x', 'y']
    assert data.x.shape == (82_115, 512)
    assert data.x.dtype == torch.float32
    assert data.edge_index.shape == (2, 230_620)
    assert int((data.y >= 0).sum()) == 82_073
    assert data.num_classes == 25
    src, dst = data.edge_index
    assert torch.equal((src * 82_115 + dst).sort()[0], (dst * 82_115 + src).sort()[0])


def test_wordnet_licence_is_shipped():
    import pyg_sar.partitioner

    package = Path(pyg_sar.partitioner.__file__).parents[1]
    assert 'Princeton' in (package / 'datasets' / 'WORDNET_LICENSE.txt').read_text()
