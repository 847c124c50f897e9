"""Datasets by name: classes of PyG, and what a synthetic name stands for."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, InMemoryDataset, TemporalData
from torch_geometric.datasets import FakeDataset, KarateClub

import pyg_sar
from pyg_sar.partition import main
from pyg_sar.partitioner.sources.datasets import load_dataset
from pyg_sar.partitioner.sources.sources import load_source
from pyg_sar.partitioner.sources.synthetic import (
    ARXIV,
    PRODUCTS,
    GraphShape,
    shape_of,
    synthetic_graph,
)

MODULE = 'torch_geometric.datasets'


class Events(InMemoryDataset):
    """A dataset of events, as PyG's JODIEDataset."""

    def __init__(self) -> None:
        super().__init__()
        self.data = TemporalData(
            src=torch.tensor([0, 1, 2]),
            dst=torch.tensor([3, 3, 4]),
            t=torch.tensor([5, 7, 9]),
            msg=torch.eye(3),
        )


class Rooted(FakeDataset):
    """A dataset with files."""

    seen = None

    def __init__(self, root: str, name: str, *, edge_dim: int = 0) -> None:
        Rooted.seen = (root, name)
        super().__init__(num_graphs=1, avg_num_nodes=20, edge_dim=edge_dim)


class Broken(FakeDataset):
    """A dataset that cannot be downloaded."""

    def __init__(self, root: str) -> None:
        raise OSError('no route to host')


def test_without_arguments():
    data, expected = load_source(f'{MODULE}.KarateClub'), KarateClub()[0]
    assert data.num_classes == 4
    for name in ('x', 'edge_index', 'y', 'train_mask'):
        assert torch.equal(data[name], expected[name])


def test_arguments():
    data = load_source(f'{MODULE}.FakeDataset(num_channels=7, edge_dim=3, task="node")')
    assert isinstance(data, Data)
    assert data.x.shape[1] == 7
    assert data.edge_attr.shape[1] == 3
    hetero = load_source(f'{MODULE}.FakeHeteroDataset(num_node_types=2, num_edge_types=3)')
    assert isinstance(hetero, HeteroData)
    assert (len(hetero.node_types), len(hetero.edge_types)) == (2, 3)


def test_root(tmp_path, monkeypatch):
    name = f'{__name__}.Rooted(name=Cora, edge_dim=2)'
    assert load_dataset(name, root=tmp_path).edge_attr is not None
    assert Rooted.seen == (str(tmp_path / 'Rooted'), 'Cora')
    monkeypatch.setenv('PYG_SAR_DATA', str(tmp_path / 'env'))
    load_dataset(name)
    assert Rooted.seen[0] == str(tmp_path / 'env' / 'Rooted')
    monkeypatch.delenv('PYG_SAR_DATA')
    load_dataset(name)
    assert Rooted.seen[0] == 'dataset/Rooted'
    load_dataset(f'{__name__}.Rooted(name="a b", root=here)', root=tmp_path)
    assert Rooted.seen == ('here', 'a b')


def test_events_become_edges_with_a_time():
    data = load_dataset(f'{__name__}.Events')
    assert data.edge_index.tolist() == [[0, 1, 2], [3, 3, 4]]
    assert data.edge_time.tolist() == [5, 7, 9]
    assert torch.equal(data.edge_attr, torch.eye(3))
    assert data.num_nodes == 5


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('no.such.Class', "expected a subclass of Dataset in 'no.such.Class' (got No module"),
        (f'{MODULE}.Nothing', 'got nothing of that name'),
        ('torch_geometric.data.Data', 'expected a subclass of Dataset'),
        ('os.PathLike(x=1)', 'expected a subclass of Dataset'),
        (f'{MODULE}.FakeDataset(3)', 'arguments without a name'),
        (f'{MODULE}.FakeDataset(**{{}})', 'arguments without a name'),
        (f'{MODULE}.FakeDataset(num_graphs=print(1))', 'expected arguments such as (name=Cora'),
        (f'{MODULE}.FakeDataset(num_graphs=)', 'expected arguments such as (name=Cora'),
        (f'{MODULE}.FakeDataset(num_graphs=2)', 'a dataset of one graph'),
        (f'{MODULE}.KarateClub(colour=red)', "unexpected keyword argument 'colour'"),
        (
            f'{__name__}.Broken',
            "its files belong in 'data/Broken' (got OSError: no route to host)",
        ),
        ('synthetic:nothing', 'or synthetic:N,E for N nodes and E undirected edges'),
        ('synthetic:10,9999', "'num_pairs' must be at most a quarter"),
        ('ogbn-cora', 'expected one of ogbn-arxiv, ogbn-mag,'),
    ],
)
def test_refused(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_source(name, root='data')


def test_command_line(tmp_path, capsys):
    """Directed as it is, or with reverse edges."""
    torch.save(
        Data(edge_index=torch.tensor([[0, 1, 2, 2], [1, 2, 1, 3]]), num_nodes=4), tmp_path / 'a.pt'
    )
    arguments = [str(tmp_path / 'a.pt'), '--num-parts', '2', '--quiet']
    assert main([*arguments, str(tmp_path / 'one')]) == 0
    assert main([*arguments, str(tmp_path / 'both'), '--undirected']) == 0
    assert _edges(pyg_sar.local(pyg_sar.load_shard(tmp_path / 'one'))) == {
        (0, 1),
        (1, 2),
        (2, 1),
        (2, 3),
    }
    both = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}
    assert _edges(pyg_sar.local(pyg_sar.load_shard(tmp_path / 'both'))) == both
    hetero = HeteroData(a={'num_nodes': 3}, b={'num_nodes': 2})
    hetero['a', 'to', 'b'].edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
    torch.save(hetero, tmp_path / 'b.pt')
    arguments = [str(tmp_path / 'b.pt'), str(tmp_path / 'c'), '--num-parts', '1', '--quiet']
    assert main([*arguments, '--undirected']) == 0
    back = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'c'))[
        'b', 'rev_to', 'a'
    ].edge_index.as_subclass(Tensor)
    assert sorted(back.t().tolist()) == [[0, 1], [1, 0], [1, 2]]
    assert main(['ogbn-arxiv', str(tmp_path / 'x'), '--num-parts', '2', '--root', 'nowhere']) == 2
    assert "'nowhere/ogbn_arxiv'" in capsys.readouterr().err


def _edges(data: Data) -> set[tuple[int, int]]:
    return {*map(tuple, data.n_id[data.edge_index.as_subclass(Tensor)].t().tolist())}


# Synthetic graphs


def test_shapes():
    assert shape_of('arxiv') is ARXIV
    assert shape_of('products') is PRODUCTS
    assert (PRODUCTS.num_nodes, 2 * PRODUCTS.num_pairs) == (2_449_029, 123_718_280)
    assert (PRODUCTS.num_features, PRODUCTS.num_classes) == (100, 47)
    data = load_source('synthetic:1500,6000', seed=2)
    assert (data.num_nodes, data.num_edges, data.num_features) == (1500, 12_000, 32)
    assert torch.equal(data.edge_index, load_source('synthetic:1500,6000', seed=2).edge_index)
    assert not torch.equal(data.edge_index, load_source('synthetic:1500,6000').edge_index)


def _scaled(shape: GraphShape, by: int) -> GraphShape:
    sizes = shape.num_nodes // by, shape.num_pairs // by
    return GraphShape(*sizes, shape.num_features, shape.num_classes)


@pytest.mark.parametrize('shape', [_scaled(ARXIV, 8), _scaled(PRODUCTS, 80)], ids=str)
def test_tail_and_labels(shape):
    data = synthetic_graph(shape, seed=1)
    degree = torch.bincount(data.edge_index[1], minlength=shape.num_nodes).double()
    # Hill's estimator over the largest two percent: the tail index of the degrees.
    largest = degree.sort(descending=True)[0][: shape.num_nodes // 50]
    index = 1 / (largest[:-1] / largest[-1]).log().mean()
    assert 1.3 < index < 2.3
    # Neighbours with a known label tell a node's: far better than the largest class does.
    known = data.train_mask[data.edge_index[0]]
    src, dst = data.edge_index[:, known]
    votes = torch.zeros(shape.num_nodes, shape.num_classes)
    votes.index_put_((dst, data.y[src]), torch.ones(src.numel()), accumulate=True)
    right = (votes.argmax(dim=1) == data.y)[data.test_mask].double().mean()
    largest_class = data.y.bincount().max() / shape.num_nodes
    assert right > 0.6
    assert right > 4 * largest_class


def test_draws_in_several_pieces(monkeypatch):
    monkeypatch.setattr('pyg_sar.partitioner.sources.synthetic._DRAWN_PAIRS', 1000)
    data = load_source('synthetic:1500,6000')
    src, dst = data.edge_index
    keys = src * 1500 + dst
    assert data.num_edges == 12_000
    assert (keys.diff() > 0).all()
    assert (src != dst).all()
    assert torch.equal((dst * 1500 + src).sort()[0], keys)
