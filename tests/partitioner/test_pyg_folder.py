"""Partitions that torch_geometric.distributed's own Partitioner wrote are converted, not loaded."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar.partition import main
from pyg_sar.partitioner.sources.sources import load_source

RECORDED = Path(__file__).parents[1] / 'data' / 'pyg_partitions.zip'
NAMES = ('homo', 'bare', 'hetero')
KEPT = {
    *('x', 'edge_attr', 'time', 'edge_time', 'n_id', 'e_id', 'edge_index'),
    *('num_nodes', 'num_nodes_total'),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(RECORDED) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def _assignment(root: Path, graph: Data | HeteroData) -> Any:
    if isinstance(graph, Data):
        return torch.load(root / 'node_map.pt')
    return {key: torch.load(root / 'node_map' / f'{key}.pt') for key in graph.node_types}


def _stores(data: Data | HeteroData) -> list[Any]:
    if isinstance(data, Data):
        return [data]
    return [data[key] for key in (*data.node_types, *data.edge_types)]


@pytest.mark.parametrize('name', NAMES)
def test_same_shards_as_of_the_graph(folder, name, capsys):
    """The same parts of the graph itself: every local id, halo and step, every row PyG stores."""
    graph = load_source(folder / f'{name}.pt')
    root = folder / name
    pyg_sar.partition_graph(graph, 2, folder / 'ours', method=_assignment(root, graph))
    assert main([str(root), str(folder / 'out'), '--quiet']) == 0
    assert 'labels, masks, edge weights' in capsys.readouterr().err
    for rank in (0, 1):
        data, ours = (pyg_sar.load_shard(folder / of, rank) for of in ('out', 'ours'))
        for found, expected in zip(_stores(data), _stores(ours), strict=True):
            assert {*found.keys()} == KEPT & {*expected.keys()}
            for key, value in found.items():
                if not isinstance(value, Tensor):
                    assert value == expected[key]
                    continue
                assert torch.equal(value.as_subclass(Tensor), expected[key].as_subclass(Tensor))
            if 'edge_index' not in found:
                continue
            a, b = found['edge_index'].shard, expected['edge_index'].shard
            for step, other in zip(a.steps, b.steps, strict=True):
                assert (step.part, step.recv_rows) == (other.part, other.recv_rows)
                assert torch.equal(step.send_index, other.send_index)


def _load(root: str) -> str:
    return attempt(pyg_sar.load_shard, root)


def test_load_shard_says_how_to_convert(folder):
    command = f'`python -m pyg_sar.partition {folder / "homo"} parts/`'
    with pytest.raises(ValueError, match=r'torch_geometric\.distributed') as caught:
        pyg_sar.local(pyg_sar.load_shard(folder / 'homo'))
    assert command in str(caught.value)
    assert_all_raise(run_ranks(_load, 2, str(folder / 'homo')), 'ValueError', command)


def test_attrs(folder, capsys):
    graph = load_source(folder / 'homo.pt')
    attrs: Any = {name: graph[name] for name in ('y', 'train_mask', 'edge_weight')}
    torch.save(attrs, folder / 'attrs.pt')
    options = ['--attrs', str(folder / 'attrs.pt'), '--quiet']
    assert main([str(folder / 'homo'), str(folder / 'out'), *options]) == 0
    data = pyg_sar.load_shard(folder / 'out', 1)
    for name in ('y', 'train_mask'):
        assert torch.equal(data[name], graph[name][data.n_id])
    assert torch.equal(data.edge_weight, graph.edge_weight[data.e_id])
    hetero = load_source(folder / 'hetero.pt')
    relation, weight = ('b', 'to', 'a'), torch.arange(9)
    attrs = {'a': {'y': hetero['a'].y}, relation: {'edge_weight': weight}}
    torch.save(attrs, folder / 'attrs.pt')
    assert main([str(folder / 'hetero'), str(folder / 'typed'), *options]) == 0
    data = pyg_sar.load_shard(folder / 'typed', 0)
    assert torch.equal(data['a'].y, hetero['a'].y[data['a'].n_id])
    assert torch.equal(data[relation].edge_weight, weight[data[relation].e_id])
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize(
    ('name', 'attrs', 'message'),
    [
        ('homo', {'y': torch.zeros(6)}, 'expected tensors of 12 nodes'),
        ('homo', {'edge_weight': torch.zeros(12)}, 'expected tensors of 30 edges'),
        ('homo', {'x': torch.zeros(12, 2)}, "attrs.pt' (got 'x')"),
        ('homo', {'y': [0] * 12}, 'expected tensors of 12 nodes'),
        ('homo', [1], 'expected a dict of tensors'),
        ('hetero', {'y': torch.zeros(12)}, "expected dicts by type or relation, ['a', 'b'"),
    ],
)
def test_wrong_attrs(folder, name, attrs, message, capsys):
    torch.save(attrs, folder / 'attrs.pt')
    arguments = [str(folder / name), str(folder / 'out'), '--attrs', str(folder / 'attrs.pt')]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_number_of_parts(folder, capsys):
    arguments = [str(folder / 'homo'), str(folder / 'out'), '--quiet', '--num-parts', '3']
    assert main(arguments) == 2
    assert "'--num-parts' must be 2" in capsys.readouterr().err
    assert main([*arguments, '--method', 'random']) == 0


def _edit(path: Path, **changes: Any) -> None:
    content = torch.load(path, weights_only=True)
    content.update({name: change(content[name]) for name, change in changes.items()})
    torch.save(content, path)


BROKEN = {
    'a class': (
        lambda homo: torch.save({'global_id': Path('/')}, homo / 'part_0' / 'edge_feats.pt'),
        'part_0/edge_feats.pt',
    ),
    'a file missing': (lambda homo: (homo / 'part_1' / 'graph.pt').unlink(), 'part_1/graph.pt'),
    'edges twice': (
        lambda homo: _edit(homo / 'part_1' / 'graph.pt', edge_id=lambda ids: ids * 0),
        'expected each id from 0 to 29 once',
    ),
    'edges beyond the graph': (
        lambda homo: _edit(homo / 'part_1' / 'graph.pt', row=lambda row: row + 10**6),
        "'edge_index' must hold ids below the number of nodes",
    ),
    'features of other nodes': (
        lambda homo: _edit(homo / 'part_1' / 'node_feats.pt', global_id=lambda ids: ids + 1),
        'expected each id from 0 to 11 once',
    ),
    'no features of one part': (
        lambda homo: _edit(homo / 'part_1' / 'node_feats.pt', feats=lambda _: {}),
        "KeyError('x')",
    ),
    'parts without end': (
        lambda homo: (homo / 'META.json').write_text(
            json.dumps({**json.loads((homo / 'META.json').read_text()), 'num_parts': 10**12})
        ),
        'expected the last part',
    ),
}


@pytest.mark.filterwarnings('ignore:.*torch_geometric.distributed.Partitioner')
@pytest.mark.parametrize('what', BROKEN)
def test_broken(folder, what, capsys):
    change, message = BROKEN[what]
    change(folder / 'homo')
    assert main([str(folder / 'homo'), str(folder / 'out'), '--quiet']) == 2
    assert message in capsys.readouterr().err
    assert not (folder / 'out').exists()
