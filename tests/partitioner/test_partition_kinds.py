"""Tensors and values that were once lost, misread or met with an error from inside torch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.hypergraph_data import HyperGraphData

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.inspection import verify_partition

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
PARTS = torch.tensor([1, 0, 1, 0])


def _data(**attrs: object) -> Data:
    return Data(**{'edge_index': EDGES, 'num_nodes': 4, **attrs})


def _loaded(data: Data, root: Path) -> Data:
    """All of it, from two parts."""
    partition_graph(data, 2, root, method=PARTS)
    assert verify_partition(root) == []
    return pyg_sar.local(pyg_sar.load_shard(root))


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


@pytest.mark.parametrize('dtype', [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_vectors(tmp_path, dtype):
    """torch has no index_select for vectors of these types; labels read from files have them."""
    y, code = (torch.arange(n).sub(1).to(dtype) for n in (4, 5))
    found = _loaded(_data(y=y, edge_code=code), tmp_path / 'parts')
    for got, ids, want in ((found.y, found.n_id, y), (found.edge_code, found.e_id, code)):
        assert got.dtype == dtype
        assert torch.equal(_bits(got), _bits(want[ids]))


def test_unsigned_rows_from_a_file(tmp_path):
    x = np.arange(8, dtype=np.uint16).reshape(4, 2)
    np.savez(tmp_path / 'graph.npz', edge_index=EDGES.numpy(), x=x)
    np.save(tmp_path / 'parts.npy', PARTS.numpy())
    method = f'file:{tmp_path / "parts.npy"}'
    partition_graph(tmp_path / 'graph.npz', 2, tmp_path / 'parts', method=method)
    found = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    assert np.array_equal(found.x.numpy(), x[found.n_id.numpy()])


@pytest.mark.parametrize(('name', 'what'), [('x', 'node, 4'), ('edge_weight', 'edge, 5')])
def test_a_number_is_no_row(tmp_path, name, what):
    """It became an attribute of the graph, a Python float, under a name that models read."""
    message = rf"'{name}' must have one row per {what} \(got shape \[\]\)"
    with pytest.raises(ValueError, match=message):
        partition_graph(_data(**{name: torch.tensor(3.0)}), 2, tmp_path / 'parts')


TIMES = {
    'a column': torch.rand(5, 1),
    'a pair': torch.rand(5, 2),
    'complex': torch.randn(5, dtype=torch.complex64),
    'float8': torch.rand(5).to(torch.float8_e5m2),
}


@pytest.mark.parametrize('name', ['time', 'edge_time'])
@pytest.mark.parametrize('kind', TIMES)
def test_what_edges_cannot_be_sorted_by_is_no_time(tmp_path, name, kind):
    """A column [N, 1] was sorted by its first number, which broke PyG's graph.pt."""
    values = TIMES[kind] if name == 'edge_time' else TIMES[kind][:4]
    found = _loaded(_data(**{name: values}), tmp_path / 'parts')
    ids = found.e_id if name == 'edge_time' else found.n_id
    assert torch.equal(_bits(found[name]), _bits(values[ids]))


def test_a_time_beside_one_that_is_none(tmp_path):
    when = torch.tensor([4, 3, 2, 1, 0])
    _loaded(_data(edge_time=torch.rand(5, 2), time=when), tmp_path / 'parts')
    for part in range(2):
        graph = torch.load(tmp_path / f'parts/part_{part}/graph.pt')
        by_time = sorted(zip(graph['col'], when[graph['edge_id']], strict=True))
        assert list(zip(graph['col'], when[graph['edge_id']], strict=True)) == by_time


@pytest.mark.parametrize('name', ['pos', 'y', 'edge_attr'])
def test_sparse_attributes_are_stored_dense(tmp_path, name):
    """They were dropped, with a warning; only `x` was kept."""
    dense = torch.rand(5 if name == 'edge_attr' else 4, 3)
    dense = dense * (dense > 0.5)
    found = _loaded(_data(**{name: dense.to_sparse()}), tmp_path / 'parts')
    assert torch.equal(found[name], dense[found.e_id if name == 'edge_attr' else found.n_id])


@pytest.mark.parametrize('name', ['x', 'edge_weight'])
def test_sparse_tensors_that_torch_cannot_make_dense(tmp_path, name):
    index = torch.tensor([[0, 1, 3], [1, 0, 1]])
    values = torch.arange(3).to(torch.uint16)
    value = torch.sparse_coo_tensor(index, values, (4, 2), check_invariants=False)
    with pytest.raises(ValueError, match=rf"'{name}' must be dense.*sparse tensor of torch.uint16"):
        partition_graph(_data(**{name: value}), 2, tmp_path / 'parts')


ODD = {
    'nested': lambda: torch.nested.nested_tensor([torch.ones(2)] * 4),
    'jagged nested': lambda: torch.nested.nested_tensor([torch.ones(2)] * 4, layout=torch.jagged),
    'quantized': lambda: torch.quantize_per_tensor(torch.ones(4, 2), 0.1, 0, torch.qint8),
    'MKL-DNN': lambda: torch.ones(4, 2).to_mkldnn(),
    'meta': lambda: torch.ones(4, 2, device='meta'),
}


@pytest.mark.filterwarnings('ignore::UserWarning')  # torch's, of nested and quantized tensors
@pytest.mark.parametrize('kind', ODD)
def test_tensors_of_other_kinds(tmp_path, kind):
    told = f'a {kind.split()[-1]} tensor'
    with pytest.raises(ValueError, match=rf"'x' must be a tensor.* \(got {told}\)"):
        partition_graph(_data(x=ODD[kind]()), 2, tmp_path / 'parts')
    with pytest.warns(UserWarning, match=rf'dropped .*other \({told}\)'):
        partition_graph(_data(other=ODD[kind]()), 2, tmp_path / 'parts')


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize(
    ('edge_index', 'got'),
    [
        (lambda: EDGES.to_sparse(), 'a sparse tensor'),
        (lambda: EDGES.to('meta'), 'a meta tensor'),
        (lambda: torch.nested.nested_tensor([*EDGES]), 'a nested tensor'),
        (lambda: EDGES.to(torch.uint32), 'torch.uint32; convert it with .long()'),
    ],
)
def test_edges_of_other_kinds(tmp_path, edge_index, got):
    with pytest.raises(ValueError, match=re.escape(f'(got {got})')):
        partition_graph(_data(edge_index=edge_index()), 2, tmp_path / 'parts')


def test_numbers_of_the_other_byte_order(tmp_path):
    x = np.arange(8.0).reshape(4, 2)
    found = _loaded(_data(x=x.astype('>f8')), tmp_path / 'memory')
    assert torch.equal(found.x, torch.from_numpy(x)[found.n_id])
    np.savez(tmp_path / 'graph.npz', edge_index=EDGES.numpy().astype('>i4'), x=x.astype('>f8'))
    partition_graph(tmp_path / 'graph.npz', 2, tmp_path / 'file')
    found = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'file'))
    assert torch.equal(found.x, torch.from_numpy(x)[found.n_id])


def test_numbers_that_torch_has_not(tmp_path):
    wide = np.ones((4, 2), dtype=np.longdouble)
    if wide.itemsize == 8:
        pytest.skip('a long double is a double here')
    with pytest.raises(ValueError, match=rf"'x' must be a tensor \(got {wide.dtype} \[4, 2\]\)"):
        partition_graph(_data(x=wide), 2, tmp_path / 'parts')
    with pytest.warns(UserWarning, match=rf'dropped .*other \({wide.dtype} \[4, 2\]\)'):
        partition_graph(_data(other=wide), 2, tmp_path / 'parts')
    np.savez(tmp_path / 'graph.npz', edge_index=EDGES.numpy(), x=wide)
    with pytest.raises(ValueError, match=rf"expected numbers that torch has in 'x'.*{wide.dtype}"):
        partition_graph(tmp_path / 'graph.npz', 2, tmp_path / 'other')


@pytest.mark.parametrize('count', [-1, 4.0, 3.7, '4', True, float('nan'), torch.tensor([4])])
def test_numbers_of_nodes_that_are_none(tmp_path, count):
    """3.7 was 3, '4' was 4, and -1 was told as a mistake in edge_index."""
    with pytest.raises(ValueError, match=r"'num_nodes' must be an int >= 0 \(got "):
        partition_graph(_data(num_nodes=count), 2, tmp_path / 'parts')
    hetero = HeteroData()
    hetero['a'].num_nodes = count
    hetero['a', 'to', 'a'].edge_index = EDGES
    with pytest.raises(ValueError, match=r"'num_nodes' of 'a' must be an int >= 0 \(got "):
        partition_graph(hetero, 2, tmp_path / 'parts')


@pytest.mark.parametrize('count', [4, np.int64(4), torch.tensor(4)])
def test_numbers_of_nodes(tmp_path, count):
    assert _loaded(_data(num_nodes=count), tmp_path / 'parts').num_nodes == 4


@pytest.mark.parametrize(
    'attrs',
    [
        {'feat': torch.rand(9, 2)},
        {'node_species': torch.rand(9)},
        {'edge_index': EdgeIndex(EDGES, sparse_size=(9, 9))},
    ],
)
def test_isolated_nodes_at_the_end(tmp_path, attrs):
    """PyG counts them by these attributes; they were lost, and so was the attribute."""
    data = Data(**{'edge_index': EDGES, **attrs})
    assert data.num_nodes == 9
    partition_graph(data, 2, tmp_path / 'parts')
    found = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    assert found.num_nodes == 9
    for name in {*attrs} - {'edge_index'}:
        assert torch.equal(found[name], attrs[name][found.n_id])


def test_a_list_of_some_nodes_is_no_number_of_nodes(tmp_path):
    data = Data(edge_index=EDGES, node_subset=torch.tensor([1, 2]))
    with pytest.warns(UserWarning, match='dropped .*node_subset'):
        partition_graph(data, 2, tmp_path / 'parts')
    assert pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts')).num_nodes == 4


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support is in beta')
@pytest.mark.parametrize('layout', [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.parametrize('name', ['adj_t', 'adj'])
def test_an_adjacency_matrix_is_converted_as_the_message_says(tmp_path, name, layout):
    """It named a method that only torch_sparse's matrices have."""
    weight = torch.tensor([[0, 1, 0, 2], [0, 3, 4, 0], [0, 0, 0, 5], [6, 0, 0, 0]]).float()
    matrix = weight.t() if name == 'adj_t' else weight
    data = Data(num_nodes=4, **{name: matrix.contiguous().to_sparse(layout=layout)})
    with pytest.raises(ValueError, match=r'\(got a sparse adjacency matrix') as caught:
        partition_graph(data, 2, tmp_path / 'parts')
    line = re.search(r'convert it: (.*)\)$', str(caught.value))
    assert line is not None
    exec(line[1], {'data': data, 'torch_geometric': torch_geometric})
    del data[name]
    _loaded(data, tmp_path / 'parts')
    dense = torch.zeros(4, 4).index_put(tuple(data.edge_index), data.edge_weight)
    assert torch.equal(dense, weight)


def test_a_hypergraph_is_no_graph(tmp_path):
    """Its hyperedges were taken for nodes."""
    data = HyperGraphData(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]]))
    with pytest.raises(ValueError, match='got a HyperGraphData; give its incidence as a relation'):
        partition_graph(data, 2, tmp_path / 'parts')


@pytest.mark.parametrize('dtype', [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_a_split_of_unsigned_labels(tmp_path, dtype):
    """torch does not compare most of them with 0; all are labels."""
    data = _data(y=torch.arange(4).to(dtype))
    partition_graph(data, 2, tmp_path / 'parts', split='0.5/0.25/0.25')
    found = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    assert bool((found.train_mask | found.val_mask | found.test_mask).all())


@pytest.mark.parametrize('name', ['n' * 260, 'ä' * 130, '\ud800'])
def test_names_of_types_that_no_file_may_have(tmp_path, name):
    """The file system's own error came after METIS had run."""
    hetero = HeteroData()
    hetero[name].num_nodes = 4
    hetero[name, 'to', name].edge_index = EDGES
    with pytest.raises(ValueError, match='expected names of types that a file may have'):
        partition_graph(hetero, 2, tmp_path / 'parts')
    assert list(tmp_path.iterdir()) == []
