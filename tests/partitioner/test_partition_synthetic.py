"""The synthetic graph, at a small scale."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from pyg_sar.partitioner.sources.sources import load_source
from pyg_sar.partitioner.sources.synthetic import ARXIV, SHAPES, GraphShape, synthetic_graph

SHAPE = GraphShape(5000, 30_000, 8, 10, community_size=100)


@pytest.fixture(scope='module')
def drawn() -> Data:
    return synthetic_graph(SHAPE, seed=0)


def test_counts(drawn):
    assert drawn.num_nodes == 5000
    assert drawn.x.shape == (5000, 8)
    assert drawn.x.dtype == torch.float32
    assert drawn.edge_index.shape == (2, 60_000)
    assert drawn.edge_index.dtype == torch.int64
    assert drawn.num_classes == 10
    assert drawn.y.unique().tolist() == list(range(10))
    masks = torch.stack([drawn.train_mask, drawn.val_mask, drawn.test_mask])
    assert masks.sum(dim=1).tolist() == [2700, 900, 1400]
    assert masks.sum(dim=0).eq(1).all()


def test_symmetric_without_loops_and_duplicates(drawn):
    src, dst = drawn.edge_index
    keys = src * 5000 + dst
    assert (keys[1:] > keys[:-1]).all()  # Sorted, no duplicates.
    assert (src != dst).all()
    assert torch.equal((dst * 5000 + src).sort()[0], keys)


def test_heavy_tail(drawn):
    degree = drawn.edge_index[0].bincount(minlength=5000).double()
    assert degree.max() > 15 * degree.mean()
    assert degree.median() < 0.8 * degree.mean()


def test_ids_carry_no_structure(drawn):
    """The first and the last tenth of the ids have about as many edges."""
    degree = drawn.edge_index[0].bincount(minlength=5000).double()
    assert 0.8 < degree[-500:].mean() / degree[:500].mean() < 1.25


def test_homophily(drawn):
    src, dst = drawn.edge_index
    same = (drawn.y[src] == drawn.y[dst]).double().mean()
    share = drawn.y.bincount().double() / 5000
    assert same > 0.65  # By construction 0.45 + 0.25, and some by chance.
    assert same > 4 * share.square().sum()


def test_features_tell_the_classes(drawn):
    """Mean features of training nodes classify test nodes far better than chance."""
    centres = torch.stack([drawn.x[drawn.train_mask & (drawn.y == c)].mean(0) for c in range(10)])
    guess = torch.cdist(drawn.x[drawn.test_mask], centres).argmin(dim=1)
    assert (guess == drawn.y[drawn.test_mask]).double().mean() > 0.2


def test_seed(drawn):
    again, other = synthetic_graph(SHAPE, seed=0), synthetic_graph(SHAPE, seed=1)
    for name in ('x', 'edge_index', 'y', 'train_mask'):
        assert torch.equal(again[name], drawn[name])
        assert not torch.equal(other[name], drawn[name])


def test_arxiv_sizes(monkeypatch):
    assert (ARXIV.num_nodes, 2 * ARXIV.num_pairs) == (169_343, 2_315_598)
    assert (ARXIV.num_features, ARXIV.num_classes) == (128, 40)
    small = GraphShape(500, 1000, 3, 4, community_size=50)
    monkeypatch.setitem(SHAPES, 'arxiv', small)
    a, b = load_source('synthetic:arxiv', seed=3), synthetic_graph(small, seed=3)
    assert torch.equal(a.edge_index, b.edge_index)


def test_too_many_pairs():
    with pytest.raises(ValueError, match=r'a quarter of all pairs .* \(got 10 and 5\)'):
        GraphShape(5, 10, 1, 1)
