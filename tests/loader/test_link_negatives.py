"""Negatives: never an edge, every pair without one alike likely, or by weight, and by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import assert_all_raise, attempt
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

import pyg_sar
from pyg_sar import partition_graph

NUM = 9


def _dense(seed: int = 0) -> Data:
    """Nine nodes with half of all edges."""
    generator = torch.Generator().manual_seed(seed)
    edges = (torch.rand(NUM, NUM, generator=generator) < 0.5).nonzero().t().contiguous()
    return Data(x=torch.rand(NUM, 2), edge_index=edges, t=torch.arange(NUM) % 5)


def _free(graph: Data) -> Tensor:
    """Pairs of different nodes without an edge, bool ``[NUM, NUM]``."""
    free = ~torch.eye(NUM, dtype=torch.bool)
    free[tuple(graph.edge_index)] = False
    return free


def _drawn(root: str, epochs: int, sampling: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Source and destination of all negatives, ids; and how often each link was seen."""
    data = pyg_sar.load_shard(root)
    if isinstance(sampling, tuple):
        sampling = NegativeSampling(*sampling)
    loader = pyg_sar.LinkNeighborLoader(data, [], neg_sampling=sampling, batch_size=64, **options)
    ends, links = [], []
    for _ in range(epochs):
        for batch in loader:
            num = batch.input_id.numel()
            if 'src_index' in batch:
                src, dst = batch.src_index, batch.dst_neg_index.view(num, -1)
                pairs = torch.stack([src.unsqueeze(1).expand_as(dst).flatten(), dst.flatten()])
            else:
                pairs = batch.edge_label_index[:, num:]
            ends.append(batch.n_id[pairs])
            if 'edge_label_time' in batch:
                links.append(batch.edge_label_time[num:])
    return torch.cat(ends, dim=1), torch.cat(links) if links else torch.empty(0)


def _all_drawn(root: str, size: int, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    results = run_as_threads(_drawn, size, root, *args, **options)
    return torch.cat([r[0] for r in results], dim=1), torch.cat([r[1] for r in results])


def _p_value(pairs: Tensor, chances: Tensor) -> float:
    """Of the chi-squared test that pairs are drawn with these chances, ``[NUM, NUM]``."""
    counts = torch.bincount(pairs[0] * NUM + pairs[1], minlength=NUM * NUM).double()
    want = (chances / chances.sum()).view(-1).double() * pairs.size(1)
    assert not counts[want == 0].any()
    some = want > 0
    statistic = ((counts - want)[some] ** 2 / want[some]).sum()
    return float(torch.special.gammaincc((some.sum() - 1).double() / 2, statistic / 2))


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('parts') / 'dense'
    partition_graph(_dense(), 4, root, method=torch.arange(NUM) * 7 % 4)
    return str(root)


def test_pairs_without_an_edge_are_alike_likely(folder: str) -> None:
    pairs, _ = _all_drawn(folder, 2, 12, {'mode': 'binary', 'amount': 100})
    assert pairs.size(1) > 40_000
    assert _p_value(pairs, _free(_dense())) > 1e-3
    lopsided = _free(_dense()).double()
    lopsided[:, 3] *= 1.2
    assert _p_value(pairs, lopsided) < 1e-6


def test_triplets_are_alike_likely(folder: str) -> None:
    graph = _dense()
    pairs, _ = _all_drawn(folder, 2, 12, {'mode': 'triplet', 'amount': 100})
    degree = torch.bincount(graph.edge_index[0], minlength=NUM)
    free = _free(graph).double()
    chances = free / free.sum(1, keepdim=True).clamp(min=1) * degree.unsqueeze(1)
    assert _p_value(pairs, chances) > 1e-3


def test_pairs_by_weight(folder: str) -> None:
    src, dst = torch.arange(NUM) % 4, torch.tensor([0, 1, 0.5, 4, 0, 2, 0.1, 1, 3])
    pairs, _ = _all_drawn(folder, 2, 12, ('binary', 100, src, dst))
    chances = _free(_dense()) * src.unsqueeze(1) * dst
    assert _p_value(pairs, chances) > 1e-3
    pairs, _ = _all_drawn(folder, 4, 2, ('triplet', 5, None, torch.arange(NUM)))
    assert pairs[1].min() == 1
    assert _free(_dense())[tuple(pairs)].all()


def test_pairs_by_time(folder: str) -> None:
    graph = _dense()
    links = torch.tensor([[0, 1, 2, 3], [5, 4, 3, 2]]).repeat(1, 16)
    times = torch.tensor([2, 4, 3, 2]).repeat(16)
    own = {'time_attr': 't', 'edge_label_time': times}
    pairs, when = _drawn(folder, 6, {'mode': 'binary', 'amount': 50}, edge_label_index=links, **own)
    assert (graph.t[pairs] <= when).all()
    for time in (2, 3, 4):
        there = graph.t <= time
        chances = _free(graph) & there & there.unsqueeze(1)
        assert _p_value(pairs[:, when == time], chances) > 1e-3


EARLY = torch.tensor([[0, 1, 2, 3], [5, 4, 3, 2]]), torch.tensor([0, 9, -1, 9])


def _early(root: str, mode: str, times: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Source and destination of the negatives of early links, and the times of these."""
    links = {'edge_label_index': EARLY[0], 'edge_label_time': times}
    data = pyg_sar.load_shard(root)
    sampling = NegativeSampling(mode, 2, weight if mode == 'binary' else None, weight)
    loader = pyg_sar.LinkNeighborLoader(
        data, [2], neg_sampling=sampling, batch_size=4, time_attr='t', **links
    )
    (batch,) = loader
    num = batch.input_id.numel()
    if mode == 'triplet':
        src, dst, when = batch.src_index.repeat_interleave(2), batch.dst_neg_index, batch.seed_time
        pairs, when = torch.stack([src, dst.view(-1)]), when.repeat_interleave(2)
    else:
        pairs, when = batch.edge_label_index[:, num:], batch.edge_label_time[num:]
    return batch.n_id[pairs], when


@pytest.mark.parametrize('size', [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize('mode', ['binary', 'triplet'])
def test_links_before_all_other_nodes_get_the_earliest_one(tmp_path, mode, size):
    """As PyG's loader does; node 5 is there first."""
    graph = Data(edge_index=EARLY[0], num_nodes=9, t=torch.tensor([3, 1, 2, 4, 5, 0, 6, 7, 8]))
    partition_graph(graph, 4, tmp_path / 'parts', method=torch.arange(9) % 4)
    for weight in (None, torch.arange(9).double()):
        results = run_as_threads(_early, size, str(tmp_path / 'parts'), mode, EARLY[1], weight)
        pairs, when = (torch.cat([each[i] for each in results], dim=-1) for i in (0, 1))
        assert pairs.size(1) == 8
        is_early = when < 1
        assert (pairs[1, is_early] == 5).all()
        if mode == 'binary':
            assert (pairs[0, is_early] == 5).all()
        late = pairs[:, ~is_early]
        assert (late[0] != late[1]).all()
        assert (graph.t[late] <= 9).all()
        assert not {(1, 4), (3, 2)} & set(map(tuple, late.t().tolist()))


def test_pairs_of_two_types(tmp_path: Path) -> None:
    graph = HeteroData()
    generator = torch.Generator().manual_seed(3)
    is_edge = torch.rand(NUM, NUM, generator=generator) < 0.6
    is_edge[:, 4] = True
    graph['a'].x, graph['b'].x = torch.rand(NUM, 1), torch.rand(NUM, 2)
    graph['a', 'b'].edge_index = is_edge.nonzero().t().contiguous()
    graph['b', 'a'].edge_index = (~is_edge).nonzero().t().contiguous().flip(0)
    partition_graph(graph, 2, tmp_path / 'parts', method='random')
    results = run_as_threads(_of_types, 2, str(tmp_path / 'parts'))
    assert _p_value(torch.cat(results, dim=1), ~is_edge) > 1e-3


def _of_types(root: str) -> Tensor:
    data = pyg_sar.load_shard(root)
    loader = pyg_sar.LinkNeighborLoader(
        data, [], ('a', 'to', 'b'), batch_size=64, neg_sampling={'mode': 'binary', 'amount': 100}
    )
    found = []
    for batch in loader:
        store = batch['a', 'to', 'b']
        src, dst = store.edge_label_index[:, store.input_id.numel() :]
        found.append(torch.stack([batch['a'].n_id[src], batch['b'].n_id[dst]]))
    return torch.cat(found, dim=1)


def _ends(root: str, options: dict[str, Any]) -> str:
    data = pyg_sar.load_shard(root)
    loader = pyg_sar.LinkNeighborLoader(data, [1], **options)
    return attempt(lambda: [None for _ in loader])


def test_a_graph_without_such_pairs_ends_all_ranks(tmp_path: Path) -> None:
    edges = torch.ones(6, 6).nonzero().t().contiguous()
    partition_graph(Data(edge_index=edges, num_nodes=6), 2, tmp_path / 'parts', method='random')
    for mode in ('binary', 'triplet'):
        options = {'neg_sampling': mode, 'batch_size': 2}
        outcomes = run_as_threads(_ends, 2, str(tmp_path / 'parts'), options)
        assert_all_raise(outcomes, 'ValueError', 'neg_sampling', '500 tries')
