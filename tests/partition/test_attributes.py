"""Which attribute goes where, that all come back bit by bit, and that none is lost silently."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric
from hetero_graphs import hetero_graph
from partition_files import meta_of
from ranks import run_as_threads
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from whole_partition import verify_partition

import pyg_sar
from pyg_sar import load_shard, partition_graph
from pyg_sar.partition.attributes import count_rows, sort_attributes

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
PARTS = torch.tensor([1, 0, 1, 0])
Y = torch.tensor([0, 1, 4, 2])
DTYPES = [
    *('bool', 'uint8', 'int8', 'int16', 'uint16', 'int32', 'uint32', 'int64', 'uint64'),
    *('float16', 'bfloat16', 'float32', 'float64', 'complex64', 'complex128', 'float8_e4m3fn'),
]


def _data(**attrs: object) -> Data:
    return Data(**{'edge_index': EDGES, 'num_nodes': 4, **attrs})


def _loaded(data: Any, root: Path, method: Any = PARTS) -> Any:
    """All of it, from two parts."""
    partition_graph(data, 2, root, method=method)
    assert verify_partition(root) == []
    return pyg_sar.local(pyg_sar.load_shard(root))


def _sorted(data: Data) -> tuple[list[str], list[str], list[str]]:
    attributes = sort_attributes(data, data.num_nodes, data.num_edges)
    return sorted(attributes.node), sorted(attributes.edge), sorted(attributes.graph)


def _same_bits(found: Tensor, want: Tensor) -> bool:
    bits = [values.contiguous().reshape(-1).view(torch.uint8) for values in (found, want)]
    return found.dtype == want.dtype and found.shape == want.shape and torch.equal(*bits)


def _rows(values: Tensor, ids: Tensor) -> Tensor:
    """As indexing, of all types: torch has none of some."""
    return torch.stack([values[int(i)] for i in ids]) if ids.numel() else values[:0]


@pytest.mark.parametrize('columns', [(), (2,)])
@pytest.mark.parametrize('name', DTYPES)
def test_every_dtype(tmp_path, name, columns):
    values = torch.arange(10).view(5, 2).to(getattr(torch, name))
    values = values if columns else values.t()[0].contiguous()
    data = _data(a=values[:4], y=values[:4], x=values[:4], edge_a=values, edge_attr=values)
    found = _loaded(data, tmp_path / 'out')
    for key in ('a', 'x', 'y', 'edge_a', 'edge_attr'):
        assert _same_bits(found[key], _rows(data[key], found.e_id if 'edge' in key else found.n_id))
    assert meta_of(tmp_path / 'out')['node_attrs']['a'] == {'dtype': name, 'shape': list(columns)}


AS_MANY = {'edge_index': EDGES[:, :4], 'num_nodes': 4, 'x': torch.rand(4, 4)}
AS_MANY |= {'weight': torch.rand(4), 'edge_attr': torch.rand(4, 1)}
SORTED = {
    'rows decide': (
        _data(
            x=torch.rand(4, 2),
            edge_count=torch.rand(4),  # One per node, whatever its name says.
            node_pair=torch.rand(5),  # One per edge.
            split_masks=torch.rand(4, 10) > 0.5,
            class_index=torch.arange(4),  # One dimension: one value per node.
        ),
        (['class_index', 'edge_count', 'split_masks', 'x'], ['node_pair'], []),
    ),
    'names decide where there are as many nodes as edges': (
        Data(**AS_MANY, is_bad_edge=torch.rand(4) > 0.5),
        (['weight', 'x'], ['edge_attr', 'is_bad_edge'], []),
    ),
}


@pytest.mark.parametrize('case', SORTED)
def test_what_an_attribute_belongs_to(case):
    data, want = SORTED[case]
    assert _sorted(data) == want


def test_graph_attributes_go_tometa_of(tmp_path):
    values = {'num_classes': 7, 'name': 'test', 'rate': 0.5, 'flag': True, 'names': ['a', 'b', 'c']}
    more = {'scalar': torch.tensor(3), 'numpy_scalar': np.float64(2.5), 'nothing': None}
    partition_graph(_data(**values, **more), 2, tmp_path / 'out')
    meta = meta_of(tmp_path / 'out')
    assert meta['graph_attrs'] == {**values, 'scalar': 3, 'numpy_scalar': 2.5}
    assert meta['node_attrs'] == meta['edge_attrs'] == {}


WHOLE = {
    'y': torch.rand(1, 3),
    'edge_label_index': EDGES,  # its last dimension has one entry per edge, but node ids
    'edge_label': torch.arange(EDGES.size(1)),  # of these, and not of the edges
    'face': torch.zeros(3, 4).long(),
    'pairs': torch.arange(2),  # as many as a rank has nodes
}


def _check_whole(root: str) -> None:
    data = pyg_sar.load_shard(root)
    batch = next(iter(pyg_sar.NeighborLoader(data, [2], batch_size=4)))
    for found in (data, batch):
        assert all(torch.equal(found[name], value) for name, value in WHOLE.items())


@pytest.mark.parametrize('world_size', [1, 2])
def test_other_tensors_are_whole_on_every_rank(tmp_path, world_size):
    partition_graph(_data(x=torch.rand(4, 2), **WHOLE), 2, tmp_path / 'out')
    run_as_threads(_check_whole, world_size, str(tmp_path / 'out'))


def _table_of_rank(root):
    data = pyg_sar.load_shard(root)
    return data['paper'].table, data.table, data['author', 'writes', 'paper'].edge_label_index


def test_other_tensors_of_a_type(tmp_path):
    data, tables = hetero_graph(), (torch.rand(5, 2), torch.rand(3), torch.zeros(2, 7).long())
    data['paper'].table, data.table, data['author', 'writes', 'paper'].edge_label_index = tables
    partition_graph(data, 2, tmp_path / 'out')
    for found in run_as_threads(_table_of_rank, 2, str(tmp_path / 'out')):
        assert all(map(torch.equal, found, tables))


DROPPED = {
    'adj_t': lambda: torch.eye(4).to_sparse(),
    'names': lambda: ['a', 'b', 'c', 'd'],
    'other': lambda: {'a': 1},
    'text': lambda: np.array(['a', 'b', 'c', 'd']),
    'wide': lambda: np.ones((4, 2), dtype=np.longdouble),
    'nested': lambda: torch.nested.nested_tensor([torch.ones(2)] * 4),
    'quantized': lambda: torch.quantize_per_tensor(torch.ones(4, 2), 0.1, 0, torch.qint8),
    'meta': lambda: torch.ones(4, 2, device='meta'),
}


@pytest.mark.filterwarnings('ignore:The PyTorch API of nested tensors')
@pytest.mark.filterwarnings('ignore:.*quantiz')
@pytest.mark.parametrize('name', DROPPED)
def test_dropped_attributes_are_named_to_the_caller(tmp_path, name):
    data = _data(**{name: DROPPED[name]()})
    with pytest.warns(UserWarning, match=rf'dropped attributes .*{name} \(') as warned:
        partition_graph(data, 2, tmp_path / 'out')
    assert warned[-1].filename == __file__
    meta, loaded = meta_of(tmp_path / 'out'), load_shard(tmp_path / 'out')
    assert meta['node_attrs'] == {}
    assert meta['dropped'][''].keys() == {name}
    for read in (getattr, operator.getitem):
        with pytest.raises((AttributeError, KeyError), match=f"'{name}'"):
            read(loaded, name)
    assert name not in loaded
    assert not hasattr(loaded, name)


@pytest.mark.parametrize(('key', 'where'), [('paper', "'paper'"), ('', 'the whole graph')])
def test_dropped_of_a_type(tmp_path, key, where):
    data = hetero_graph()
    (data[key] if key else data)['table'] = torch.zeros(5, 2).to_sparse()
    with pytest.warns(UserWarning, match=rf'of {where} .*table') as caught:
        partition_graph(data, 2, tmp_path / 'out')
    assert [warning.filename for warning in caught] == [__file__]
    loaded = load_shard(tmp_path / 'out')
    with pytest.raises(AttributeError, match="has no attribute 'table'"):
        _ = (loaded[key] if key else loaded.stores[0]).table
    told = meta_of(tmp_path / 'out')['dropped'][key]
    assert told == {'table': 'sparse torch.float32 [5, 2]'}


SAME = {
    'fortran': lambda x: np.asfortranarray(x.numpy()),
    'read-only': lambda x: np.frombuffer(x.numpy().tobytes()).reshape(-1, 2),
    'other byte order': lambda x: x.numpy().astype('>f8'),
    'parameter': lambda x: torch.nn.Parameter(x),
    'gradient': lambda x: x.clone().requires_grad_(),
    'coo': lambda x: x.to_sparse(),
    'csr': lambda x: x.to_sparse_csr(),
    'csc': lambda x: x.to_sparse_csc(),
}


@pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta')
@pytest.mark.parametrize('name', ['x', 'pos', 'edge_attr'])
@pytest.mark.parametrize('kind', SAME)
def test_stored_as_plain_dense_tensors(tmp_path, kind, name):
    count = 5 if 'edge' in name else 4
    want = torch.arange(10.0, dtype=torch.float64).view(5, 2)[:count] % 3
    found = _loaded(_data(**{name: SAME[kind](want)}), tmp_path / 'out')
    assert _same_bits(found[name], want[found.e_id if 'edge' in name else found.n_id])


TIMES = {
    'a column': torch.rand(5, 1),
    'a pair': torch.rand(5, 2),
    'complex': torch.randn(5, dtype=torch.complex64),
    'float8': torch.rand(5).to(torch.float8_e5m2),
}


@pytest.mark.parametrize('name', ['time', 'edge_time'])
@pytest.mark.parametrize('kind', TIMES)
def test_times_of_any_kind_are_kept(tmp_path, name, kind):
    values = TIMES[kind] if name == 'edge_time' else TIMES[kind][:4]
    found = _loaded(_data(**{name: values}), tmp_path / 'parts')
    ids = found.e_id if name == 'edge_time' else found.n_id
    assert _same_bits(found[name], values[ids])


def test_count_nodes():
    for want, attrs in (
        (4, {}),
        (9, {'num_nodes': 9}),
        (6, {'x': torch.zeros(6, 1)}),
        (7, {'train_mask': torch.zeros(7)}),
        (8, {'y': torch.zeros(8)}),
        (4, {'y': torch.zeros(1)}),  # Of the graph.
        (9, {'feat': torch.zeros(9, 2)}),
        (9, {'node_species': torch.zeros(9)}),
        (4, {'node_subset': torch.zeros(2)}),
        (9, {'edge_index': EdgeIndex(EDGES, sparse_size=(9, 9))}),
        (4, {'num_nodes': np.int64(4)}),
        (4, {'num_nodes': torch.tensor(4)}),
    ):
        data = Data(**{'edge_index': EDGES, **attrs})
        assert count_rows(data, data.edge_index) == want, attrs
    assert count_rows(Data(edge_index=EDGES[:, :0]), EDGES[:, :0]) == 0


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support is in beta')
@pytest.mark.parametrize('layout', [torch.sparse_csr, torch.sparse_coo])
def test_an_adjacency_matrix_is_converted_as_the_message_says(tmp_path, layout):
    weight = torch.tensor([[0, 1, 0, 2], [0, 3, 4, 0], [0, 0, 0, 5], [6, 0, 0, 0]]).float()
    data = Data(num_nodes=4, adj=weight.to_sparse(layout=layout))
    with pytest.raises(ValueError, match=r'\(got a sparse adjacency matrix') as caught:
        partition_graph(data, 2, tmp_path / 'parts')
    line = re.search(r'convert it: (.*)\)$', str(caught.value))
    assert line is not None
    exec(line[1], {'data': data, 'torch_geometric': torch_geometric})
    del data['adj']
    _loaded(data, tmp_path / 'parts')
    dense = torch.zeros(4, 4).index_put(tuple(data.edge_index), data.edge_weight)
    assert torch.equal(dense, weight)


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize(
    ('y', 'num_classes', 'label_range'),
    [
        (Y, 5, [0, 4]),
        (Y.int().view(4, 1), 5, [0, 4]),
        (Y.to(torch.uint8) * 63, 253, [0, 252]),
        (torch.where(Y == 0, -1, Y), 5, [-1, 4]),
        (Y > 1, 2, [0, 1]),
        (torch.stack([Y > 0, Y > 1, Y > 2], dim=1).long(), 3, [0, 1]),
        (torch.full((4,), -1), None, [-1, -1]),
        (Y.float(), None, None),
        (None, None, None),
    ],
)
def test_classes_of_the_whole_graph(tmp_path, y, num_classes, label_range):
    partition_graph(_data(y=y), 2, tmp_path / 'parts', method=PARTS)
    for data in (pyg_sar.load_shard(tmp_path / 'parts', rank) for rank in range(2)):
        found = data.get('num_classes'), data.get('label_range')
        assert found == (num_classes, label_range)


def test_facts_that_the_user_stored_stay(tmp_path):
    data = _loaded(_data(y=Y, num_classes=7, label_range='mine'), tmp_path / 'a')
    assert (data.num_classes, data.label_range) == (7, 'mine')
    for count in (3, 4):  # of no node, and of every one
        data = _loaded(_data(y=Y, num_classes=torch.arange(count)), tmp_path / f'{count}')
        assert torch.equal(data.num_classes, data.n_id if count == 4 else torch.arange(3))


def test_facts_of_every_type(tmp_path):
    data = hetero_graph()
    del data['paper'].num_classes
    data['author'].y = torch.arange(data['author'].num_nodes) % 9
    partition_graph(data, 2, tmp_path / 'parts')
    for part in (pyg_sar.load_shard(tmp_path / 'parts', rank) for rank in range(2)):
        assert (part['paper'].num_classes, part['paper'].label_range) == (3, [0, 2])
        assert part['author'].num_classes == 9
        assert 'num_classes' not in part['term']
        assert part['term'].num_nodes_total == data['term'].num_nodes
        assert part['author'].num_features == 4


def test_a_batch_keeps_how_many_graphs_it_has(tmp_path):
    batch = Batch.from_data_list([_data(), _data(), _data()])
    partition_graph(batch, 2, tmp_path / 'parts')
    found = pyg_sar.load_shard(tmp_path / 'parts')
    assert found.num_graphs == 3
    assert torch.equal(found.ptr, batch.ptr)


def test_lists_of_nodes_stay_and_give_masks(tmp_path):
    data = _data(
        train_idx=torch.tensor([3, 0]),
        valid_idx=torch.tensor([], dtype=torch.int32),
        test_idx=torch.tensor([2]),
        test_mask=torch.arange(4) == 2,  # once more
    )
    found = _loaded(data, tmp_path / 'a')
    assert sorted(found.n_id[found.train_mask].tolist()) == [0, 3]
    assert not found.val_mask.any()
    assert torch.equal(found.test_mask, found.n_id == 2)
    for name in ('train_idx', 'valid_idx', 'test_idx'):  # ids of the whole graph, in their order
        assert torch.equal(found[name], data[name])
    # A list of all nodes, and one as long as the edges.
    found = _loaded(_data(train_idx=torch.randperm(4), val_idx=torch.arange(5) % 4), tmp_path / 'b')
    assert found.train_mask.all()
    assert found.val_mask.all()
    # Rows by that name stay.
    found = _loaded(_data(train_idx=torch.tensor([1, 1, 0, 2]), test_idx=Y > 1), tmp_path / 'c')
    assert torch.equal(found.train_idx, torch.tensor([1, 1, 0, 2])[found.n_id])
    assert torch.equal(found.test_idx, Y[found.n_id] > 1)
