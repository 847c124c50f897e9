"""Every mistake of a caller is a ValueError that says what was expected, before any work."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner import partition_graph

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


def _data(**kwargs: object) -> Data:
    return Data(**{'edge_index': EDGES, 'num_nodes': 4, **kwargs})


CASES = {
    'float edge_index': (
        {'data': _data(edge_index=EDGES.float())},
        "'edge_index' must hold integers (got torch.float32)",
    ),
    'bool edge_index': (
        {'data': _data(edge_index=EDGES > 1)},
        "'edge_index' must hold integers (got torch.bool)",
    ),
    'transposed edge_index': (
        {'data': _data(edge_index=EDGES.t())},
        "'edge_index' must be a dense tensor of shape [2, E] (got shape [5, 2])",
    ),
    'flat edge_index': (
        {'data': _data(edge_index=EDGES[0])},
        "'edge_index' must be a dense tensor of shape [2, E] (got shape [5])",
    ),
    'negative id': (
        {'data': _data(edge_index=EDGES - 2)},
        "'edge_index' must hold ids >= 0 (got -2)",
    ),
    'id too large': (
        {'data': _data(num_nodes=3)},
        "'edge_index' must hold ids below the number of nodes, 3 (got 3)",
    ),
    'no edge_index': ({'data': Data(x=torch.ones(4, 1))}, "expected a tensor 'edge_index'"),
    'adj_t alone': (
        {'data': Data(adj_t=torch.eye(4).to_sparse(), num_nodes=4)},
        'got a sparse adjacency matrix; convert it',
    ),
    'no relation': (
        {'data': HeteroData()},
        "expected at least one relation in 'data' (got node types [] alone)",
    ),
    'no graph': ({'data': {'edge_index': EDGES}}, '(got dict'),
    'no parts': ({'num_parts': 0}, "'num_parts' must be an int >= 1 (got 0)"),
    'float parts': ({'num_parts': 2.0}, "'num_parts' must be an int >= 1 (got 2.0)"),
    'bool parts': ({'num_parts': True}, "'num_parts' must be an int >= 1 (got True)"),
    'too many parts': (
        {'num_parts': 5},
        "'num_parts' must not exceed the number of nodes (got 5 and 4)",
    ),
    'no nodes': (
        {'data': Data(edge_index=EDGES[:, :0], num_nodes=0), 'num_parts': 1},
        '(got 1 and 0)',
    ),
    'method': (
        {'method': 'scotch'},
        "'method' must be one of ['random', 'range', 'file:PATH', 'kahip', 'mtkahypar', 'metis', "
        "'ldg', 'fennel'] (got 'scotch')",
    ),
    'method of another type': ({'method': np.zeros(4)}, "'method' must be one of"),
    'backend': ({'backend': 'scotch'}, "'backend' must be one of"),
    'ignored backend': (
        {'method': 'random', 'backend': 'pymetis'},
        "'backend' applies to ['metis'] alone (got 'pymetis', method='random')",
    ),
    'balance': ({'balance': 'memory'}, "'balance' must be some of ['nodes', 'edges', 'train"),
    'ignored balance': (
        {'method': torch.zeros(4).long(), 'balance': 'edges'},
        "'balance' does not apply to method='tensor' (got 'edges')",
    ),
    'balance without training nodes': (
        {'balance': 'train'},
        "balance='train' needs training nodes (got a graph without 'train_mask'",
    ),
    'balance twice': ({'balance': 'nodes,nodes'}, "(got 'nodes,nodes')"),
    'no balance': ({'balance': []}, "'balance' must be some of"),
    'types of one type': ({'balance': 'types'}, "balance='types' needs a HeteroData"),
    'objective': ({'objective': 'time'}, "'objective' must be one of ['cut', 'volume'] (got 'time"),
    'ignored objective': (
        {'method': 'ldg', 'objective': 'volume'},
        "objective='volume' applies to ['mtkahypar', 'metis'] alone (got method='ldg'",
    ),
    'ignored passes': ({'passes': 3}, "'passes' applies to ['ldg', 'fennel'] alone (got method='m"),
    'passes': ({'method': 'ldg', 'passes': 0}, "'passes' must be an int >= 1 (got 0)"),
    'negative seed': ({'seed': -1}, "'seed' must be an int in [0, 2**31) (got -1)"),
    'part ids of another length': (
        {'method': torch.zeros(3).long()},
        "expected one part id per node, shape [4], in the tensor 'method' (got shape [3])",
    ),
    'part ids too large': (
        {'method': torch.tensor([0, 1, 2, 0])},
        "expected part ids from 0 to 1 in the tensor 'method' (got 0 to 2)",
    ),
    'float part ids': (
        {'method': torch.zeros(4)},
        "expected integer part ids in the tensor 'method' (got torch.float32)",
    ),
    'missing file of part ids': (
        {'method': 'file:/no/such.npy'},
        "expected a file of part ids at '/no/such.npy' (got no file)",
    ),
    'NaN': (
        {'data': _data(x=torch.tensor([[0.0], [float('nan')], [1.0], [2.0]])), 'check_nan': True},
        "expected no NaN in 'x' (got 1 NaN values)",
    ),
    'sparse NaN': (
        {
            'data': _data(x=torch.diag(torch.tensor([1, torch.nan, 1, 1])).to_sparse()),
            'check_nan': True,
        },
        "expected no NaN in 'x' (got 1 NaN values)",
    ),
    'x is no tensor': ({'data': _data(x=[1, 2, 3, 4])}, "'x' must be a tensor (got list)"),
}


@pytest.mark.parametrize('case', sorted(CASES))
def test_refused(tmp_path, case):
    options, message = CASES[case]
    arguments = {'data': _data(), 'num_parts': 2, 'root': tmp_path / 'out', **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        partition_graph(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_part_id_files_that_hold_something_else(tmp_path):
    torch.save({'a': 1}, tmp_path / 'a.pt')
    np.save(tmp_path / 'b.npy', np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / 'c.txt').write_text('one two')
    (tmp_path / 'd.csv').write_text('0\n1\n')
    for name in ('a.pt', 'b.npy', 'c.txt', 'd.csv'):
        with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))):
            partition_graph(_data(), 2, tmp_path / 'out', method=f'file:{tmp_path / name}')


def test_nan_passes_by_default(tmp_path):
    partition_graph(_data(x=torch.full((4, 1), torch.nan)), 2, tmp_path / 'a')
    integers = _data(x=torch.zeros(4, 1).long())
    partition_graph(integers, 2, tmp_path / 'b', check_nan=True)
