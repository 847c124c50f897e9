"""Scores, recommendations and negative edges of unsupervised models: those of plain PyG."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike, cut_of
from conv_case import make
from graphs import awkward_graph
from ranks import run_as_threads
from torch import Tensor
from unsupervised_cases import CASES, given_of

import pyg_sar


def _scores(root: str) -> None:
    plain, whole = make(CASES['GAE']), given_of(awkward_graph())
    with torch.no_grad():
        z = plain.encode(whole.data.x, whole.data.edge_index)
        want = plain.test(z, whole.pos, whole.neg)
    model, given = (
        pyg_sar.DistributedDataParallel(make(CASES['GAE'])),
        given_of(pyg_sar.load_shard(root)),
    )
    with torch.no_grad():
        z = model.encode(given.data.x, given.data.edge_index)
        assert model.test(z, given.pos, given.neg) == pytest.approx(want, abs=1e-12)
        of_edges = plain.test(
            plain.encode(whole.data.x, whole.data.edge_index), whole.data.edge_index, whole.neg
        )
        got = model.test(z, pyg_sar.gather(given.data.edge_index), given.neg)
        assert got == pytest.approx(of_edges, abs=1e-12)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    infomax, y = pyg_sar.DistributedDataParallel(make(CASES['DeepGraphInfomax'])), whole.data.y
    want = infomax.test(whole.data.x, y, whole.data.x[:9], y[:9])
    data = given.data
    x, y = pyg_sar.gather(data.x), pyg_sar.gather(data.y)
    assert infomax.test(x, y, x[:9], y[:9]) == pytest.approx(want)


@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
def test_scores(kind: str) -> None:
    run_as_threads(_scores, 3, cut_of(awkward_graph, 3, kind))


def _recommended(root: str) -> None:
    graph, data = awkward_graph(), pyg_sar.load_shard(root)
    plain, model = (
        make(CASES['LightGCN links']),
        pyg_sar.DistributedDataParallel(make(CASES['LightGCN links'])),
    )
    if pyg_sar.comm.ranks.world_size() == 1:
        want = plain.recommend(graph.edge_index, k=3)
        assert torch.equal(model.recommend(data.edge_index, k=3), want)
    else:
        with pytest.raises(ValueError, match="'matmul'"):
            model.recommend(data.edge_index, k=3)
    some = {'src_index': torch.tensor([7, 3]), 'dst_index': torch.arange(5, 20)}
    want = plain.recommend(graph.edge_index, k=2, **some)
    assert torch.equal(model.recommend(data.edge_index, k=2, **some), want)
    assert torch.equal(model.recommend(graph.edge_index, k=2, **some), want)


def test_recommendations_are_ids_of_the_whole_graph() -> None:
    root = cut_of(awkward_graph, 3, 'empty part')
    run_as_threads(_recommended, 3, root)
    _recommended(root)


def _negatives_by_itself(data: Any, wrap: Wrap) -> Tensor:
    model = wrap(make(CASES['GAE']))
    random.seed(5)  # what negative_sampling of PyG draws from
    return model.recon_loss(model.encode(data.x, data.edge_index), data.edge_index).detach()


def test_negative_edges_by_itself() -> None:
    assert_alike(_negatives_by_itself, graph=awkward_graph, ranks=(1, 3), tolerance=1e-12)
