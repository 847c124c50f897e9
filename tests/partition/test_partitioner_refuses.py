"""Every mistake of a caller is a ValueError that names it, before any work; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hetero_graphs import CITES, WRITES, assignment, hetero_graph
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.hypergraph_data import HyperGraphData

from pyg_sar.partition.partition_graph import partition_graph

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


def _data(**attrs: object) -> dict[str, Any]:
    return {'data': Data(**{'edge_index': EDGES, 'num_nodes': 4, **attrs})}


def _made(**make: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: _data(**{name: of() for name, of in make.items()})


def _set(key: object, **attrs: object) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        data = hetero_graph()
        for name, value in attrs.items():
            data[key][name] = value
        return {'data': data}

    return make


def _relations(*keys: tuple[str, str, str], **options: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        data = HeteroData()
        for key in keys:
            data[key[0]].num_nodes = data[key[2]].num_nodes = 3
            data[key].edge_index = torch.zeros(2, 1, dtype=torch.int64)
        return {'data': data, **options}

    return make


def _sparse(dtype: torch.dtype) -> torch.Tensor:
    ids, values = torch.tensor([[0, 1, 3], [1, 0, 1]]), torch.arange(3).to(dtype)
    return torch.sparse_coo_tensor(ids, values, (4, 2), check_invariants=False)


HETERO = {'data': hetero_graph()}
CASES: list[tuple[Any, str]] = [
    # edge_index
    (_data(edge_index=EDGES.float()), "'edge_index' must hold integers (got torch.float32)"),
    (_data(edge_index=EDGES > 1), 'integers (got torch.bool)'),
    (_data(edge_index=EDGES.t()), 'shape [2, E] (got shape [5, 2])'),
    (_data(edge_index=EDGES[0]), 'shape [2, E] (got shape [5])'),
    (_data(edge_index=EDGES - 2), '>= 0 (got -2)'),
    (_data(num_nodes=3), 'below the number of nodes, 3 (got 3)'),
    (_data(edge_index=EDGES.to_sparse()), '(got a sparse tensor)'),
    (_made(edge_index=lambda: EDGES.to('meta')), '(got a meta tensor)'),
    (_made(edge_index=lambda: torch.nested.nested_tensor([*EDGES])), '(got a nested tensor)'),
    ({'data': Data(x=torch.ones(4, 1))}, "expected a tensor 'edge_index'"),
    ({'data': Data(adj=torch.eye(4).to_sparse())}, 'sparse adjacency matrix; convert it'),
    ({'data': {'edge_index': EDGES}}, '(got dict'),
    (
        {'data': HyperGraphData(x=torch.rand(4, 2), edge_index=EDGES)},
        'got a HyperGraphData; give its incidence as a relation',
    ),
    # of relations
    ({'data': HeteroData()}, 'at least one relation'),
    (_set(CITES, edge_index=None), f"'edge_index' in {CITES}"),
    (_set(CITES, edge_index=torch.zeros(2, 3)), f"'edge_index' of {CITES} must hold integers"),
    (_set(WRITES, edge_index=torch.tensor([[25], [0]])), 'number of nodes, 25 (got 25)'),
    (_set(WRITES, edge_index=torch.tensor([[0], [34]])), 'number of nodes, 34 (got 34)'),
    (_set(('paper', 'in', 'venue'), edge_index=torch.zeros(2, 1).long()), "type 'venue'"),
    (_relations(('a/b', 'to', 'c')), "that a file may have (got 'a/b')"),
    *(
        (_relations((n, 'to', n)), 'a file may have')
        for n in ('n' * 260, 'ä' * 130, '\ud800', '\x1b[1m')
    ),
    (_data(**{'\x1b[1m': torch.ones(4)}), r"names of printable letters (got '\x1b[1m')"),
    (_set('paper', **{'a\nb': 1}), r"letters of 'paper' (got 'a\nb')"),
    (_relations(('a', 'b__c', 'd'), ('a__b', 'c', 'd')), 'names of relations that differ'),
    # numbers of nodes and parts
    *(
        (_data(num_nodes=count), "'num_nodes' must be an int >= 0")
        for count in (-1, 4.0, 3.7, '4', True, float('nan'), torch.tensor([4]))
    ),
    (_set('paper', num_nodes=3.7), "'num_nodes' of 'paper' must be an int >= 0"),
    ({'num_parts': 0}, "'num_parts' must be an int >= 1 (got 0)"),
    *(
        ({'num_parts': value}, f"'num_parts' must be an int >= 1 (got {value!r})")
        for value in (2.0, True, '2', np.bool_(True), np.float64(2), np.int64(0), np.array([2]))
    ),
    ({'num_parts': 5}, 'exceed the number of nodes (got 5 and 4)'),
    ({**HETERO, 'num_parts': 76}, '(got 76 and 75)'),
    ({**_data(edge_index=EDGES[:, :0], num_nodes=0), 'num_parts': 1}, '(got 1 and 0)'),
    # attributes
    (_data(x=torch.zeros(3, 2)), "'x' must have one row per node, 4 (got shape [3, 2])"),
    (_data(train_mask=torch.zeros(5)), "'train_mask' must have one row per node, 4"),
    (_data(train_mask=torch.tensor([0, 2])), "(got shape [2]): ids are named 'train_idx'"),
    (_data(edge_attr=torch.zeros(4, 2)), "'edge_attr' must have one row per edge, 5"),
    (_data(edge_weight=torch.zeros(1)), "'edge_weight' must have one row per edge, 5"),
    (_data(x=torch.tensor(3.0)), "'x' must have one row per node, 4 (got shape [])"),
    (_data(edge_weight=torch.tensor(3.0)), 'one row per edge, 5 (got shape [])'),
    (_set('paper', train_mask=torch.zeros(33)), "'train_mask' of 'paper'"),
    (_set(WRITES, edge_attr=torch.zeros(3, 2)), f"'edge_attr' of {WRITES}"),
    (_data(n_id=torch.arange(4)), "(got 'n_id')"),
    (_set('paper', n_id=torch.zeros(34)), "(got 'n_id' of 'paper')"),
    (_data(x=[1, 2, 3, 4]), "'x' must be a tensor (got list)"),
    (_made(x=lambda: torch.nested.nested_tensor([torch.ones(2)] * 4)), 'a nested tensor'),
    (
        _made(x=lambda: torch.nested.nested_tensor([torch.ones(2)] * 4, layout=torch.jagged)),
        'a nested',
    ),
    (
        _made(x=lambda: torch.quantize_per_tensor(torch.ones(4, 2), 0.1, 0, torch.qint8)),
        'a quantized',
    ),
    (_made(x=lambda: torch.ones(4, 2).to_mkldnn()), 'a MKL-DNN tensor'),
    (_made(x=lambda: torch.ones(4, 2, device='meta')), 'a meta tensor'),
    (_data(x=_sparse(torch.uint16)), "'x' must be dense"),
    (_data(edge_weight=_sparse(torch.uint16)), "'edge_weight' must be dense"),
    (_data(train_idx=torch.tensor([4])), "'train_idx' must hold node ids in [0, 4) (got 4 to 4)"),
    (_data(val_idx=torch.tensor([-1])), '(got -1 to -1)'),
    (
        _data(train_idx=torch.tensor([1]), train_mask=torch.zeros(4, dtype=torch.bool)),
        "one of 'train_idx' and 'train_mask'",
    ),
    # options
    ({'method': 'scotch'}, "'method' must be one of ['metis', 'ldg', 'kaminpar', "),
    ({'method': np.zeros(4)}, "'method' must be one of"),
    ({'balance': 'memory'}, "'balance' must be one of"),
    ({'balance': 'nodes,edges'}, "(got 'nodes,edges')"),
    ({'balance': ['nodes']}, "'balance' must be one of"),
    ({'method': torch.zeros(4).long(), 'balance': 'edges'}, "'balance' does not apply"),
    ({'objective': 'time'}, "'objective' must be one of"),
    ({'method': 'ldg', 'objective': 'volume'}, "objective='volume' needs method='metis'"),
    *(
        ({'seed': seed}, "'seed' must be an int in")
        for seed in (-1, np.bool_(True), np.float64(2), np.array([2]), '2')
    ),
    *(
        ({'split': split}, "'split' must be three fractions")
        for split in ('0.6/0.4', '0.6,0.2,0.2', 'a/b/c', '', '60/20/20', '0/0.5/0.5', '1.2/-0.2/0')
    ),
    ({'split': 0.6}, "'split' must be three fractions"),
    ({**_data(train_mask=EDGES[0, :4] > 0), 'split': '0.6/0.2/0.2'}, '(got train_mask)'),
    ({**_data(y=torch.full((4,), -1)), 'split': '0.6/0.2/0.2'}, 'needs labelled nodes'),
    (_relations(('a', 'to', 'b'), split='0.6/0.2/0.2'), "a node type with labels 'y'"),
    # parts
    ({'method': torch.zeros(3).long()}, 'shape [4], in the tensor'),
    ({'method': torch.tensor([0, 1, 2, 0])}, 'from 0 to 1 in the tensor'),
    ({'method': torch.zeros(4)}, 'integer part ids'),
    ({'method': 'file:/no/such.npy'}, "at '/no/such.npy' (got no file)"),
    ({**HETERO, 'method': {'paper': torch.zeros(34).long()}}, 'expected parts of the node types'),
    ({**HETERO, 'method': assignment(2) | {'term': torch.zeros(3).long()}}, "of 'term' (got shape"),
]


@pytest.mark.filterwarnings('ignore::UserWarning')  # torch's and PyG's, of what is odd here
@pytest.mark.parametrize(('options', 'message'), CASES)
def test_refused(tmp_path, options, message):
    options = options() if callable(options) else options
    arguments = {**_data(), 'num_parts': 2, 'root': tmp_path / 'out', **options}
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
            partition_graph(_data()['data'], 2, tmp_path / 'out', method=f'file:{tmp_path / name}')
