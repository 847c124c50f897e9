"""Methods of PyG's Data and HeteroData on a cut graph: what plain PyG gives, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from as_whole import check
from ranks import run_as_threads
from torch_geometric.data import Data, HeteroData

import pyg_sar

N, E = 20, 60

OF_DATA = """
d.subgraph(d.train_mask); d.subgraph(torch.arange(7)); d.edge_subgraph(d.edge_attr[:, 0] > 0)
d.edge_subgraph(torch.arange(9)); d.sort(); d.sort(sort_by_row=False); d.coalesce()
[d.is_sorted(), d.is_coalesced(), d.sort().is_sorted()]; d.update({'x': d.x * 2})
d.update(Data(x=d.x + 1)); d.has_isolated_nodes(); d.has_self_loops()
[d.is_undirected(), d.is_directed()]; [d.num_node_types, d.num_edge_types]; d.size()
[d.num_nodes, d.num_edges, d.num_features, d.num_edge_features]; d.validate()
[d.is_node_attr('x'), d.is_edge_attr('edge_attr'), d.is_node_attr('y')]; d.stores_as(d.clone())
d.apply(lambda t: t * 2, 'x'); d.detach().contiguous().to('cpu')
d.requires_grad_('x').x.requires_grad; d.get_edge_index('coo')
d.get_tensor(attr_name='x', index=None); Data.from_dict(d.to_dict())
d.put_tensor(torch.ones(N, 3), attr_name='z', index=None)
"""

OF_HETERO_DATA = """
d.to_homogeneous(); d.to_homogeneous(add_node_type=False, add_edge_type=False); d.validate()
d.subgraph({'u': d['u'].train_mask}); d.subgraph({k: v.train_mask for k, v in d.node_items()})
d.edge_subgraph({('u', 'to', 'v'): d['u', 'to', 'v'].edge_attr[:, 0] > 0})
d.node_type_subgraph(['u']); d.edge_type_subgraph([('u', 'on', 'u')]); d.rename('u', 'w')
[d.num_nodes, d.num_edges, d.num_features, d.num_edge_features]; [d.node_types, d.edge_types]
[d.collect('x'), d.x_dict, d.edge_attr_dict]; d.set_value_dict('z', {'u': d['u'].x * 2})
d.coalesce(); [d.sort(), d.is_sorted(), d.is_coalesced()]
"""


def run(expression: str, data: Any) -> Any:
    return eval(expression, {'torch': torch, 'Data': Data, 'N': N, 'd': data.clone()})


def _data() -> Data:
    draw = torch.Generator().manual_seed(0)
    edge_index, kinds = torch.randint(N - 2, (2, E), generator=draw), torch.arange(N) // 3 % 2
    return Data(
        x=torch.randn(N, 4, dtype=torch.float64, generator=draw),
        edge_index=edge_index,
        edge_attr=torch.randn(E, 2, dtype=torch.float64, generator=draw),
        y=torch.randint(3, (N,), generator=draw),
        train_mask=torch.rand(N, generator=draw) > 0.4,
        node_type=kinds,
        edge_type=kinds[edge_index[0]] * 2 + kinds[edge_index[1]],
        num_nodes=N,
    )


def _hetero_data() -> HeteroData:
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    for key, count in (('u', 14), ('v', 9)):
        data[key].x = torch.randn(count, 4, dtype=torch.float64, generator=draw)
        data[key].train_mask = torch.rand(count, generator=draw) > 0.4
        data[key].num_nodes = count
    for key, num_dst, num_edges in ((('u', 'to', 'v'), 9, 40), (('u', 'on', 'u'), 14, 30)):
        ends = [torch.randint(n, (num_edges,), generator=draw) for n in (14, num_dst)]
        data[key].edge_index = torch.stack(ends)
        data[key].edge_attr = torch.randn(num_edges, 2, dtype=torch.float64, generator=draw)
    return data


CUTS = {
    'OF_DATA': (_data, torch.arange(N) % 3),
    'OF_HETERO_DATA': (_hetero_data, {'u': torch.arange(14) % 3, 'v': torch.arange(9) % 3}),
}


def _cut(table: str, root: Path) -> tuple[Any, str]:
    make, method = CUTS[table]
    data: Any = make()
    pyg_sar.partition_graph(data, 3, root, method=method)
    return data, str(root)


@pytest.mark.parametrize('table', CUTS)
def test_as_plain_pyg(table: str, tmp_path: Path) -> None:
    check(__name__, table, *_cut(table, tmp_path / 'parts'), tolerance=1e-13)


def _refused(root: str) -> None:
    data = pyg_sar.load_shard(root)
    for other in (data.clone(), _data()):
        for one, two in ((data, other), (other.clone(), data)):
            with pytest.raises((AttributeError, NotImplementedError)):
                one.concat(two)
    with pytest.raises(ValueError, match="cannot change a graph's edges in place"):
        data.to_heterogeneous(data.node_type, data.edge_type)


@pytest.mark.parametrize('num_ranks', [1, 3])
def test_methods_that_are_refused(num_ranks: int, tmp_path: Path) -> None:
    run_as_threads(_refused, num_ranks, _cut('OF_DATA', tmp_path / 'parts')[1])
