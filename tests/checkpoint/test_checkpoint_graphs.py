"""A checkpoint knows the graph whose nodes a NodeEmbedding has rows of, however it is cut."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hetero_graphs import hetero_graph
from ranks import run_ranks
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar.shard.meta import read_meta


def _named(data: Any, root: Path, num_parts: int = 2, **options: Any) -> str:
    options = {'method': 'random', **options}
    pyg_sar.partition_graph(data, num_parts, root, **options)
    return read_meta(root).graph


def _with(edge_index: Tensor, num_nodes: int = 40) -> Data:
    return Data(edge_index=edge_index, num_nodes=num_nodes)


def _changed(edges: Tensor, place: tuple[int, int]) -> Tensor:
    edges = edges.clone()
    edges[place] = (edges[place] + 1) % 40
    return edges


def test_a_graph_has_one_name_however_it_is_cut(tmp_path):
    """In memory and on disk, of any order of edges, integer type, features and method."""
    graph = small_graph()
    edges = graph.edge_index
    order = torch.randperm(edges.size(1))
    np.savez(tmp_path / 'graph.npz', edge_index=edges.numpy(), x=graph.x.numpy())
    torch.save(graph, tmp_path / 'graph.pt')
    same = [
        (graph, 1, {}),
        (graph, 4, {'method': 'ldg'}),
        (graph, 3, {'method': 'metis', 'seed': 5}),
        (_with(edges[:, order]), 2, {}),
        (_with(edges.int()), 2, {}),
        (tmp_path / 'graph.npz', 2, {}),
        (tmp_path / 'graph.pt', 2, {}),
    ]
    names = {_named(g, tmp_path / f'{i}', n, **o) for i, (g, n, o) in enumerate(same)}
    assert len(names) == 1
    other = [
        edges.flip(0),
        edges[:, 1:],
        torch.cat([edges, edges[:, :1]], dim=1),
        torch.cat([edges[:, 1:], edges[:, 1:2]], dim=1),
        *(_changed(edges, (end, e)) for end in (0, 1) for e in (0, 100)),
        torch.stack([edges[0], edges[1].roll(1)]),
    ]
    others = [_with(of) for of in other] + [_with(edges, 41)]
    names |= {_named(g, tmp_path / f'other {i}') for i, g in enumerate(others)}
    assert len(names) == 1 + len(others)


def test_names_of_graphs_of_several_types(tmp_path):
    graph = hetero_graph()
    key = graph.edge_types[0]
    turned, moved = graph.clone(), graph.clone()
    turned[key].edge_index = turned[key].edge_index.flip(1)  # another order of edges
    reordered = HeteroData({k: graph[k].to_dict() for k in reversed(graph.node_types)})
    for k in reversed(graph.edge_types):
        reordered[k].update(graph[k].to_dict())
    moved[key].edge_index = moved[key].edge_index.clone()
    moved[key].edge_index[0, 0] = (moved[key].edge_index[0, 0] + 1) % moved[key[0]].num_nodes
    names = [
        _named(data, tmp_path / f'{i}', 1 + i)
        for i, data in enumerate([graph, turned, reordered, moved])
    ]
    assert names[0] == names[1] == names[2] != names[3]


def _model(data: Any) -> Any:
    nodes = data if isinstance(data, Data) else data[data.node_types[0]]
    model = torch.nn.ModuleDict({'table': pyg_sar.NodeEmbedding(nodes, 3, seed=1)})
    return model, torch.optim.Adam(model.parameters())


def _save(parts: str, root: str) -> None:
    model, optimizer = _model(pyg_sar.load_shard(parts))
    model['table'].weight.square().sum().backward()
    optimizer.step()
    pyg_sar.save_checkpoint(root, model, optimizer, epoch=1)


def _check_load(parts: str, root: str, told: str = '') -> None:
    """Refused with these words, and then nothing changes; or loaded."""
    model, optimizer = _model(pyg_sar.local(pyg_sar.load_shard(parts)))
    before = pyg_sar.gather(model['table'].weight.detach()).clone()
    with pytest.raises(ValueError, match=re.escape(told)) if told else nullcontext():
        pyg_sar.load_checkpoint(root, model, optimizer)
    after = pyg_sar.gather(model['table'].weight.detach())
    assert torch.equal(before, after) is bool(told)


@pytest.mark.parametrize('writers', [3, 1])
@pytest.mark.parametrize('readers', [3, 1])
@pytest.mark.parametrize('kind', [small_graph, hetero_graph])
def test_rows_of_another_graph_are_refused(tmp_path, kind, writers, readers):
    graph, other = kind(), kind()
    store = other if isinstance(other, Data) else other[other.edge_types[0]]
    store.edge_index = torch.stack([store.edge_index[0].roll(1), store.edge_index[1]])
    paths = {name: str(tmp_path / name) for name in ('parts', 'again', 'other', 'run')}
    name, again = (
        _named(graph, tmp_path / of, 3, seed=i) for i, of in enumerate(['parts', 'again'])
    )
    of_other = _named(other, tmp_path / 'other', 3)
    assert name == again != of_other
    run_ranks(_save, writers, paths['parts'], paths['run'])
    told = f"the graph {of_other} for 'table' (got some of {name}"
    run_ranks(_check_load, readers, paths['other'], paths['run'], told)
    run_ranks(_check_load, readers, paths['again'], paths['run'])


def _check_two(first: str, second: str, root: str) -> None:
    """A program with two graphs: each table has its own."""
    a, b = pyg_sar.load_shard(first), pyg_sar.load_shard(second)

    def model(*data: Any) -> Any:
        tables = torch.nn.ModuleList(pyg_sar.NodeEmbedding(each, 3, seed=1) for each in data)
        return tables, torch.optim.Adam(tables.parameters())

    pyg_sar.save_checkpoint(root, *model(a, b), epoch=1)
    pyg_sar.load_checkpoint(root, *model(a, b))
    with pytest.raises(ValueError, match=r"for '0' \(got"):
        pyg_sar.load_checkpoint(root, *model(b, a))


def test_every_table_has_its_graph(tmp_path):
    graph = small_graph()
    _named(graph, tmp_path / 'a')
    _named(_with(graph.edge_index.flip(0)), tmp_path / 'b')
    run_ranks(_check_two, 2, *(str(tmp_path / name) for name in ('a', 'b', 'run')))


def test_a_checkpoint_without_names_is_damaged(tmp_path):
    pyg_sar.partition_graph(small_graph(), 1, tmp_path / 'parts')
    parts, run = str(tmp_path / 'parts'), str(tmp_path / 'run')
    _save(parts, run)
    path = tmp_path / 'run' / 'epoch-000001' / 'checkpoint.json'
    about = json.loads(path.read_text())
    assert about.pop('graphs') == {'table': read_meta(tmp_path / 'parts').graph}
    path.write_text(json.dumps(about))
    _check_load(parts, run, "cannot be read: KeyError('graphs')")
