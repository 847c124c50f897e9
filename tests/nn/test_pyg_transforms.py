"""Transforms of PyG: before the cut they are right, on a part they are right or refused."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path

import pytest
import torch
import torch_geometric.transforms as T
from alike import cut_of
from small_graphs import assert_close, small_graph
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import BaseTransform

import pyg_sar
from pyg_sar.partition.__main__ import main
from pyg_sar.partition.sources.datasets import transformed

OWN = [
    T.Constant(),
    T.ToDevice('cpu'),
    T.AddSelfLoops('edge_weight'),
    T.AddRemainingSelfLoops('edge_weight'),
    T.RemoveSelfLoops('edge_weight'),
    T.LinearTransformation(torch.tensor([[0.0, 1.0], [2.0, 0.0]])),
    T.RemoveTrainingClasses([1]),
    T.Compose([T.Constant(), T.RemoveTrainingClasses([0, 2])]),
]


def _graph() -> Data:
    data = small_graph(60, 300)
    data.pos = data.pos[:, 0]
    return data


@pytest.mark.parametrize('transform', OWN, ids=str)
def test_by_row(transform: BaseTransform) -> None:
    want = transform(_graph())
    for rank in range(3):
        part = pyg_sar.load_shard(cut_of(_graph, 3), rank)
        found = transform(part)
        for key in ('x', 'y', 'pos', 'train_mask'):
            assert_close(found[key], want[key][part.n_id])


def test_all_others_are_refused() -> None:
    part = pyg_sar.load_shard(cut_of(_graph, 3), 1)
    names = {type(transform).__name__ for transform in OWN}
    others = set(T.__all__) - names - {'BaseTransform', 'Compose', 'ComposeFilters'}
    others -= {'ToSparseTensor'}  # gives adj_t
    others -= {'AddGPSE'}  # calls a model of PyG that has a virtual node, so needs a trained one
    assert len(others) > 50
    for name in others:
        transform = object.__new__(getattr(T, name))
        with pytest.raises(ValueError, match=f'T.{name} means nothing on a cut graph: \\w'):
            transform(part)
    assert T.NormalizeFeatures()(_graph()).x.min() == 0  # of a whole graph as ever


class Doubled(BaseTransform):
    def forward(self, data: Data) -> Data:
        data.x = 2 * data.x
        return data


def test_those_of_users_run() -> None:
    part = pyg_sar.load_shard(cut_of(_graph, 3), 1)
    assert_close(Doubled()(part).x, 2 * _graph().x[part.n_id])


def test_before_the_cut(tmp_path: Path) -> None:
    graph = _graph()
    graph.x = graph.x.abs()
    torch.save(graph, tmp_path / 'graph.pt')
    options = ['--num-parts', '2', '--quiet', '--method', 'random']
    options += ['--transform', 'NormalizeFeatures', '--transform', 'OneHotDegree(max_degree=30)']
    assert main([str(tmp_path / 'graph.pt'), str(tmp_path / 'parts'), *options]) == 0
    want = T.Compose([T.NormalizeFeatures(), T.OneHotDegree(30)])(copy.copy(graph))
    for rank in range(2):
        part = pyg_sar.load_shard(tmp_path / 'parts', rank)
        assert_close(part.x, want.x[part.n_id])


def test_what_is_drawn_depends_on_the_seed() -> None:
    first, again, other = (
        transformed(_graph(), 'RandomNodeSplit(num_val=10, num_test=10)', seed=seed)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.val_mask, again.val_mask)
    assert not torch.equal(first.val_mask, other.val_mask)


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('Nothing', "expected a class in 'Nothing' .got nothing of that name"),
        ('no_such_module.Nothing', "No module named 'no_such_module'"),
        ('NormalizeFeatures(', 'expected a class such as'),
        ('AddRandomWalkPE(3)', 'arguments without a name'),
        ('AddRandomWalkPE(length=3)', 'could not apply the transform .*length'),
        ('RandomLinkSplit', 'expected one graph from .* .got tuple'),
    ],
)
def test_wrong_transforms(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        transformed(_graph(), text)


def test_counts(tmp_path: Path) -> None:
    part = pyg_sar.load_shard(cut_of(_graph, 3), 0)
    assert (part.num_nodes, part.num_nodes_total) == (part.n_id.numel(), 60)
    data = HeteroData()
    data['a'].x, data['b'].x = torch.ones(7, 1), torch.ones(9, 1)
    data['a', 'to', 'b'].edge_index = torch.tensor([[0, 6], [8, 1]])
    pyg_sar.partition_graph(data, 2, tmp_path / 'typed', method='random')
    typed = pyg_sar.load_shard(tmp_path / 'typed', 0)
    assert (typed['a'].num_nodes_total, typed['b'].num_nodes_total) == (7, 9)


def test_the_list_is_of_transforms() -> None:
    from pyg_sar.rows.patches import _BY_ROW

    assert {t for t in _BY_ROW if inspect.isclass(getattr(T, t, None))} == _BY_ROW
