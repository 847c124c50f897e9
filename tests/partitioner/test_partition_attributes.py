"""Which attribute goes where, and that none is lost without a word."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.graph.attributes import count_rows, sort_attributes

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])

DTYPES = [
    'bool',
    'uint8',
    'int8',
    'int16',
    'uint16',
    'int32',
    'uint32',
    'int64',
    'uint64',
    'float16',
    'bfloat16',
    'float32',
    'float64',
    'complex64',
    'complex128',
    'float8_e4m3fn',
]


def _sorted(data: Data) -> tuple[list[str], list[str], list[str]]:
    attributes = sort_attributes(data, data.num_nodes, data.num_edges)
    return sorted(attributes.node), sorted(attributes.edge), sorted(attributes.graph)


@pytest.mark.parametrize('name', DTYPES)
def test_every_dtype(tmp_path, name):
    values = torch.arange(10).view(5, 2).to(getattr(torch, name))
    data = Data(edge_index=EDGES, num_nodes=4, a=values[:4], edge_a=values, x=values[:4])
    data.edge_attr = values
    partition_graph(data, 2, tmp_path / 'out', method='random')
    for part in range(2):
        folder = tmp_path / 'out' / f'part_{part}'
        sar = torch.load(folder / 'sar.pt')
        for rows, ids in (
            (torch.load(folder / 'node_attrs.pt')['a'], sar['n_id']),
            (torch.load(folder / 'node_feats.pt')['feats']['x'], sar['n_id']),
            (torch.load(folder / 'edge_attrs.pt')['edge_a'], sar['e_id']),
            (torch.load(folder / 'edge_feats.pt')['feats']['edge_attr'], sar['e_id']),
        ):
            assert rows.dtype == values.dtype
            assert rows.view(torch.uint8).equal(values[ids].view(torch.uint8))
    meta = json.loads((tmp_path / 'out' / 'META.json').read_text())['pyg_sar']
    assert meta['node_attrs']['a'] == {'dtype': name, 'shape': [2]}


def test_rows_decide():
    data = Data(
        edge_index=EDGES,
        num_nodes=4,
        x=torch.rand(4, 2),
        edge_count=torch.rand(4),  # One per node, whatever its name says.
        node_pair=torch.rand(5),  # One per edge.
        split_masks=torch.rand(4, 10) > 0.5,
        class_index=torch.arange(4),  # One dimension: one value per node.
    )
    assert _sorted(data) == (
        ['class_index', 'edge_count', 'split_masks', 'x'],
        ['node_pair'],
        [],
    )


def test_ids_are_no_rows():
    """[2, L] has one row per node, if there are two, but the columns count."""
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    data.edge_label_index = torch.zeros(2, 7, dtype=torch.int64)
    with pytest.warns(UserWarning, match='edge_label_index'):
        assert _sorted(data) == ([], [], [])


def test_names_decide_when_there_are_as_many_nodes_as_edges():
    data = Data(
        edge_index=EDGES[:, :4],
        num_nodes=4,
        x=torch.rand(4, 4),
        y=torch.arange(4),
        weight=torch.rand(4),
        edge_attr=torch.rand(4, 1),
        edge_label=torch.rand(4),
        is_bad_edge=torch.rand(4) > 0.5,
    )
    assert _sorted(data) == (['weight', 'x', 'y'], ['edge_attr', 'edge_label', 'is_bad_edge'], [])


def test_graph_attributes_go_to_meta(tmp_path):
    values = {
        'num_classes': 7,
        'name': 'test',
        'rate': 0.5,
        'flag': True,
        'class_names': ['a', 'b', 'c'],
        'scalar': torch.tensor(3),
        'numpy_scalar': np.float64(2.5),
        'nothing': None,
    }
    data = Data(edge_index=EDGES, num_nodes=4, **values)
    partition_graph(data, 2, tmp_path / 'out')
    meta = json.loads((tmp_path / 'out' / 'META.json').read_text())['pyg_sar']
    expected = {**values, 'scalar': 3, 'numpy_scalar': 2.5}
    del expected['nothing']
    assert meta['graph_attrs'] == expected
    assert meta['node_attrs'] == meta['edge_attrs'] == {}


def test_dropped_attributes_are_named():
    data = Data(
        edge_index=EDGES,
        num_nodes=4,
        y=torch.rand(1, 3),
        edge_label_index=EDGES,  # Its last dimension has one entry per edge, but holds node ids.
        face=torch.zeros(3, 4).long(),
        adj_t=torch.eye(4).to_sparse(),
        node_names=['a', 'b', 'c', 'd'],
        other={'a': 1},
        text=np.array(['a', 'b', 'c', 'd']),
    )
    with pytest.warns(UserWarning, match='dropped attributes') as warned:
        attributes = sort_attributes(data, 4, 5)
    assert not attributes.node
    assert not attributes.edge
    assert not attributes.graph
    for name in ('y', 'edge_label_index', 'face', 'adj_t', 'node_names', 'other', 'text'):
        assert f'{name} (' in str(warned[0].message)
    assert 'y (torch.float32 [1, 3])' in str(warned[0].message)


def test_dropping_names_the_caller(tmp_path):
    data = Data(edge_index=EDGES, num_nodes=4, y=torch.rand(1, 3))
    with pytest.warns(UserWarning, match='y') as warned:
        partition_graph(data, 2, tmp_path / 'out')
    assert warned[0].filename == __file__


def test_numpy_arrays_become_tensors(tmp_path, check_partition):
    x = np.arange(8.0).reshape(2, 4).T  # Fortran order.
    y = np.arange(4)[::-1]
    y.flags.writeable = False
    data = Data(edge_index=EDGES, x=x, y=y)
    partition_graph(data, 2, tmp_path / 'out')
    expected = Data(edge_index=EDGES, x=torch.tensor(x), y=torch.tensor(y.copy()))
    check_partition(tmp_path / 'out', expected, 2)


@pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta')
@pytest.mark.parametrize('layout', ['coo', 'csr', 'csc'])
def test_sparse_x_is_stored_dense(tmp_path, check_partition, graph, layout):
    dense = graph.x * (graph.x > 0.5)
    sparse = graph.clone()
    sparse.x = getattr(dense, {'coo': 'to_sparse'}.get(layout, f'to_sparse_{layout}'))()
    partition_graph(sparse, 3, tmp_path / 'out')
    expected = graph.clone()
    expected.x = dense
    check_partition(tmp_path / 'out', expected, 3)


def test_parameters_and_gradients_are_detached(tmp_path, check_partition, graph):
    data = graph.clone()
    data.x = torch.nn.Parameter(graph.x)
    data.edge_weight = graph.edge_weight.clone().requires_grad_()
    partition_graph(data, 2, tmp_path / 'out')
    check_partition(tmp_path / 'out', graph, 2)


@pytest.mark.parametrize(
    ('name', 'rows', 'message'),
    [
        ('x', 3, r"'x' must have one row per node, 4 \(got shape \[3, 2\]\)"),
        ('train_mask', 5, r"'train_mask' must have one row per node, 4"),
        ('edge_attr', 4, r"'edge_attr' must have one row per edge, 5 \(got shape \[4, 2\]\)"),
        ('edge_weight', 1, r"'edge_weight' must have one row per edge, 5"),
    ],
)
def test_well_known_names_must_fit(tmp_path, name, rows, message):
    data = Data(edge_index=EDGES, num_nodes=4)
    data[name] = torch.zeros(rows, 2)
    with pytest.raises(ValueError, match=message):
        partition_graph(data, 2, tmp_path / 'out')


def test_reserved_names(tmp_path):
    data = Data(edge_index=EDGES, num_nodes=4, n_id=torch.arange(4))
    with pytest.raises(ValueError, match="rename or delete the attribute \\(got 'n_id'\\)"):
        partition_graph(data, 2, tmp_path / 'out')


def _count(data: Data) -> int:
    return count_rows(data, data.edge_index)


def test_count_nodes():
    assert _count(Data(edge_index=EDGES)) == 4
    assert _count(Data(edge_index=EDGES, num_nodes=9)) == 9
    assert _count(Data(edge_index=EDGES, x=torch.zeros(6, 1))) == 6
    assert _count(Data(edge_index=EDGES, train_mask=torch.zeros(7))) == 7
    assert _count(Data(edge_index=EDGES, y=torch.zeros(8))) == 8
    assert _count(Data(edge_index=EDGES, y=torch.zeros(1))) == 4  # Of the graph.
    assert _count(Data(edge_index=EDGES[:, :0])) == 0
