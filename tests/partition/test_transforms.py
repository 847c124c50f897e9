"""``--transform``: what PyG gives with ids of 64 bits, and names that follow their nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graph_files import command, refuses, write_table
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

import pyg_sar
from pyg_sar.partition.graph import with_wide_ids
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.datasets import transformed
from pyg_sar.partition.sources.node_tables import NodeTableOptions

pytest.importorskip('pyarrow')


@pytest.mark.parametrize('transform', ['ToUndirected', 'RemoveDuplicatedEdges', 'LineGraph'])
def test_products_of_ids_do_not_overflow(tmp_path, transform):
    """70,000^2 is more than 32 bits hold."""
    edges = torch.randint(70_000, (2, 30_000), generator=torch.Generator().manual_seed(0))
    edges[:, :4] = torch.tensor([[0, 61_356, 69_999, 69_999], [67_296, 0, 5, 5]])
    np.savetxt(tmp_path / 'a.txt', edges.t().numpy(), '%d')
    wanted = getattr(T, transform)()(Data(edge_index=edges, num_nodes=70_000)).edge_index
    words = ('--method', 'range', '--transform', transform)
    assert command(tmp_path / 'a.txt', tmp_path / 'out', *words) == 0
    found = torch.tensor(pyg_sar.load_shard(tmp_path / 'out').edge_index.tolist())
    assert torch.equal(*(coalesce(each, sort_by_row=False) for each in (found, wanted)))


@pytest.mark.parametrize('dtype', ['uint8', 'int16', 'uint16', 'int32'])
def test_narrow_ids(tmp_path, dtype):
    src, dst = np.array([[0, 1, 1, 2], [1, 2, 2, 255 % (1 + np.iinfo(dtype).max)]]).astype(dtype)
    path = write_table(tmp_path / 'a.parquet', {'src': src, 'dst': dst})
    words = ('--transform', 'RemoveDuplicatedEdges', '--transform', 'RemoveIsolatedNodes')
    assert command(path, tmp_path / 'out', *words, num_parts=1) == 0
    assert pyg_sar.load_shard(tmp_path / 'out').num_nodes == 4


@pytest.mark.filterwarnings('ignore:.*(CSR|CSC) tensor support|.*invariant checks')
def test_narrow_ids_of_matrices_and_of_several_graphs(tmp_path):
    edges = torch.tensor([[200], [0]], dtype=torch.uint8)
    torch.save([Data(edge_index=edges, num_nodes=201)] * 3, tmp_path / 'a.pt')
    assert load_source(tmp_path / 'a.pt').edge_index.tolist() == [[200, 401, 602], [0, 201, 402]]
    matrix = torch.eye(3).to_sparse_csr()
    narrow = torch.sparse_csr_tensor(
        matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values(), (3, 3)
    )
    wide = with_wide_ids(Data(adj_t=narrow)).adj_t
    assert wide.col_indices().dtype == torch.int64
    assert torch.equal(wide.to_dense(), torch.eye(3))


class Reversed:
    """Takes nodes in the other order."""

    def __call__(self, data: Any) -> Any:
        for key, value in data.items():
            if isinstance(value, torch.Tensor):
                data[key] = 5 - value if key == 'edge_index' else value.flip(0)
        return data


def test_names_follow_their_nodes(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('src\tdst\na\tb\nc\td\nd\te\ne\tf\n')
    with pytest.warns(UserWarning, match='6 names'):
        data = load_source(path)
    largest = transformed(data.clone(), 'LargestConnectedComponents')
    assert largest.node_names.to_pylist() == ['c', 'd', 'e', 'f']
    assert sorted(largest.keys()) == ['edge_index', 'node_names', 'num_nodes']
    turned = transformed(data.clone(), f'{__name__}.Reversed')
    assert turned.node_names.to_pylist() == [*'fedcba']
    assert turned.edge_index.tolist() == [[5, 3, 2, 1], [4, 2, 1, 0]]
    refuses(lambda: transformed(data, 'VirtualNode'), 'no new nodes from', '7 nodes and 6 names')
    data = Data(edge_index=torch.tensor([[1], [2]]), num_nodes=3, node_names=['a', 'b', 'c'])
    assert transformed(data, 'RemoveIsolatedNodes').node_names.to_pylist() == ['b', 'c']


@pytest.mark.filterwarnings('ignore:.*names of nodes')
@pytest.mark.parametrize('transform', ['ToUndirected', 'AddSelfLoops', 'RemoveSelfLoops'])
def test_as_many_edges_as_nodes(tmp_path, transform):
    """PyG tells attributes of edges from those of nodes by names alone."""
    ends, ids = {'src': [0, 1, 2, 3, 4], 'dst': [1, 2, 3, 4, 4]}, [0, 1, 2, 3, 4]
    nodes = write_table(tmp_path / 'n.parquet', {'id': ids, 'age': [5, 6, 7, 8, 9]})
    words = ('--method', 'range', '--nodes', nodes, '--transform', transform)
    wrong = write_table(tmp_path / 'w.parquet', {**ends, 'w': ids})
    tables = NodeTableOptions(nodes=str(nodes))
    told = "'edge' in the names of columns", transform, "got 'w' of edges", 'rename the column'
    refuses(lambda: transformed(load_source(wrong, tables=tables), transform), *told)
    right = write_table(tmp_path / 'e.parquet', {**ends, 'edge_w': ids})
    assert command(right, tmp_path / 'out', *words) == 0
    data, plain = pyg_sar.load_shard(tmp_path / 'out'), torch.tensor(list(ends.values()))
    want: Any = Data(edge_index=plain, num_nodes=5, edge_w=torch.tensor(ids))
    want = getattr(T, transform)()(want)
    assert not data.is_node_attr('edge_w')
    assert data.is_node_attr('age')
    assert sorted(data.edge_w.tolist()) == sorted(want.edge_w.tolist())
    assert data.num_edges == want.num_edges
