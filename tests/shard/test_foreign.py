"""Partitions written by torch_geometric.distributed's own Partitioner (tests/data) load as ours."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.partition import main
from pyg_sar.partitioner.sources.sources import load_source

RECORDED = Path(__file__).parents[1] / 'data' / 'pyg_partitions.zip'
NAMES = ('homo', 'bare', 'hetero')


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp('pyg')
    with zipfile.ZipFile(RECORDED) as archive:
        archive.extractall(path)
    return path


def _plain(value: Tensor) -> Tensor:
    return value.as_subclass(Tensor)


def _stores(data: Data | HeteroData) -> list[tuple[Any, Any]]:
    if isinstance(data, Data):
        return [(None, data)]
    return [(key, data[key]) for key in data.node_types]


def _assignment(root: Path, graph: Data | HeteroData) -> Any:
    if isinstance(graph, Data):
        return torch.load(root / 'node_map.pt')
    return {key: torch.load(root / 'node_map' / f'{key}.pt') for key in graph.node_types}


@pytest.mark.filterwarnings('ignore:.*torch_geometric.distributed.Partitioner')
@pytest.mark.parametrize('rank', [0, 1, None])
@pytest.mark.parametrize('name', NAMES)
def test_same_shards_as_ours(folder, tmp_path, name, rank):
    """The same parts written by us: every local id, halo and step, and every row PyG stores."""
    graph = load_source(folder / f'{name}.pt')
    root = folder / name
    pyg_sar.partition_graph(graph, 2, tmp_path / 'ours', method=_assignment(root, graph))
    loaded = pyg_sar.load_shard(root, rank)
    ours = pyg_sar.load_shard(tmp_path / 'ours', rank)
    kept = {'x', 'edge_attr', 'time', 'edge_time', 'n_id', 'e_id', 'edge_index', 'num_nodes'}
    pairs = [(loaded, ours)]
    if isinstance(graph, HeteroData):
        assert loaded.metadata() == ours.metadata()
        pairs = [(loaded[key], ours[key]) for key in (*graph.node_types, *graph.edge_types)]
    for theirs, mine in pairs:
        assert {*theirs.keys()} == kept & {*mine.keys()}
        for key in theirs.keys():  # noqa: SIM118
            if isinstance(mine[key], Tensor):
                assert torch.equal(_plain(theirs[key]), _plain(mine[key])), key
            else:
                assert theirs[key] == mine[key]
        if 'edge_index' not in mine:
            continue
        a, b = theirs['edge_index'].shard, mine['edge_index'].shard
        for field in ('own_ptr', 'halo_ptr', 'block_ptr', 'dst_rows', 'num_nodes', 'num_parts'):
            assert getattr(a, field) == getattr(b, field), field
        assert len(a.steps) == len(b.steps) == (0 if rank is None else 1)
        for step, expected in zip(a.steps, b.steps, strict=True):
            assert (step.part, step.recv_rows) == (expected.part, expected.recv_rows)
            assert torch.equal(step.send_index, expected.send_index)


def test_says_what_pyg_dropped(folder):
    with pytest.warns(
        UserWarning, match=r'labels, masks, edge weights .* load_shard\(root, attrs='
    ):
        data = pyg_sar.load_shard(folder / 'homo', 0)
    assert 'y' not in data


def test_attrs(folder, tmp_path):
    graph = load_source(folder / 'homo.pt')
    attrs = {name: graph[name] for name in ('y', 'train_mask', 'edge_weight')}
    torch.save(attrs, tmp_path / 'attrs.pt')
    for given in (attrs, tmp_path / 'attrs.pt'):
        data = pyg_sar.load_shard(folder / 'homo', 1, attrs=given)
        for name in ('y', 'train_mask'):
            assert torch.equal(data[name], graph[name][data.n_id])
        assert torch.equal(data.edge_weight, graph.edge_weight[data.e_id])
    hetero = load_source(folder / 'hetero.pt')
    relation, weight = ('b', 'to', 'a'), torch.arange(9)
    given = {'a': {'y': hetero['a'].y}, relation: {'edge_weight': weight}}
    data = pyg_sar.load_shard(folder / 'hetero', 0, attrs=given)
    assert torch.equal(data['a'].y, hetero['a'].y[data['a'].n_id])
    assert torch.equal(data[relation].edge_weight, weight[data[relation].e_id])


@pytest.mark.parametrize(
    ('attrs', 'message'),
    [
        ({'y': torch.zeros(6)}, "one row for each of the 12 nodes of the whole graph in 'y'"),
        ({'edge_weight': torch.zeros(12)}, 'each of the 30 edges of the whole graph'),
        ({'x': torch.zeros(12, 2)}, "names in 'attrs' that the partition has not \\(got 'x'"),
        ({'y': [0] * 12}, 'expected a tensor .* \\(got list\\)'),
    ],
)
def test_wrong_attrs(folder, attrs, message):
    with pytest.raises(ValueError, match=message):
        pyg_sar.load_shard(folder / 'homo', 0, attrs=attrs)
    with pytest.raises(ValueError, match="expected dicts by type of nodes \\['a', 'b'\\]"):
        pyg_sar.load_shard(folder / 'hetero', 0, attrs=attrs)


def test_no_class_beyond_tensors_is_loaded(folder, tmp_path):
    with zipfile.ZipFile(RECORDED) as archive:
        archive.extractall(tmp_path)
    torch.save({'global_id': Path('/')}, tmp_path / 'homo' / 'part_0' / 'edge_feats.pt')
    with pytest.raises(ValueError, match=r"a file of tensors at '.*part_0/edge_feats.pt'"):
        pyg_sar.load_shard(tmp_path / 'homo', 0, attrs={})
    (tmp_path / 'homo' / 'part_1' / 'graph.pt').unlink()
    with pytest.raises(FileNotFoundError, match=r'part_1/graph.pt'):
        pyg_sar.load_shard(tmp_path / 'homo', 0, attrs={})


def _sage(root: str, attrs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    data = pyg_sar.load_shard(root, attrs=attrs)
    torch.manual_seed(0)
    conv = pyg_sar.SARConv(SAGEConv(2, 3).double())
    return data.n_id, conv(data.x.double(), data.edge_index).detach() * data.y.view(-1, 1)


def test_two_ranks(folder):
    graph = load_source(folder / 'homo.pt')
    torch.manual_seed(0)
    expected = SAGEConv(2, 3).double()(graph.x.double(), graph.edge_index) * graph.y.view(-1, 1)
    for n_id, out in run_ranks(_sage, 2, str(folder / 'homo'), {'y': graph.y}):
        torch.testing.assert_close(out, expected[n_id].detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize('name', NAMES)
def test_partitioned_anew_with_the_same_parts(folder, tmp_path, name, capsys):
    graph = load_source(folder / f'{name}.pt')
    attrs: Any = {'y': graph.y} if isinstance(graph, Data) else {'a': {'y': graph['a'].y}}
    torch.save(attrs, tmp_path / 'attrs.pt')
    arguments = [str(folder / name), str(tmp_path / 'out')]
    assert main([*arguments, '--attrs', str(tmp_path / 'attrs.pt'), '--quiet']) == 0
    assert capsys.readouterr().err == ''
    data = pyg_sar.load_shard(tmp_path / 'out', 1)
    assignment = _assignment(folder / name, graph)
    for key, store in _stores(data):
        whole = graph if key is None else graph[key]
        parts = assignment if key is None else assignment[key]
        assert store.n_id.tolist() == (parts == 1).nonzero().view(-1).tolist()
        assert torch.equal(store.x, whole.x[store.n_id])
        if 'y' in store:
            assert torch.equal(store.y, whole.y[store.n_id])
    relations = [None] if isinstance(data, Data) else data.edge_types
    for key in relations:
        store, whole = (data, graph) if key is None else (data[key], graph[key])
        if key is None:
            assert torch.equal(data.n_id[store.edge_index[1]], whole.edge_index[1][store.e_id])
        if 'edge_attr' in whole:
            assert torch.equal(store.edge_attr, whole.edge_attr[store.e_id])
    assert main([*arguments, '--force', '--num-parts', '3', '--quiet']) == 2
    assert "'--num-parts' must be 2" in capsys.readouterr().err
    assert main([*arguments, '--force', '--num-parts', '3', '--method', 'random', '--quiet']) == 0
    assert 'labels, masks' in capsys.readouterr().err
