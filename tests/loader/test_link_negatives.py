"""Negatives: never an edge, every pair without one alike likely, or by weight, and by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
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


def _drawn(
    root: str, epochs: int, sampling: Any, relation: Any = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Source and destination of all negatives, ids; and the times of their links."""
    if isinstance(sampling, tuple):
        sampling = NegativeSampling(*sampling)
    if relation is not None:
        options['edge_label_index'] = relation
    options |= {'neg_sampling': sampling, 'batch_size': 64}
    loader = pyg_sar.LinkNeighborLoader(pyg_sar.load_shard(root), [], **options)
    ends, times = [torch.empty(2, 0, dtype=torch.int64)], [torch.empty(0)]
    for batch in (batch for _ in range(epochs) for batch in loader):
        store = batch if relation is None else batch[relation]
        num = store.input_id.numel()
        if 'src_index' in store:
            dst = store.dst_neg_index.flatten()
            amount = dst.numel() // max(num, 1)
            src, when = store.src_index.repeat_interleave(amount), store.get('seed_time')
            when = None if when is None else when.repeat_interleave(amount)
        else:
            src, dst = store.edge_label_index[:, num:]
            when = store.edge_label_time[num:] if 'edge_label_time' in store else None
        n_ids = [batch.n_id] * 2 if relation is None else [batch[t].n_id for t in relation[::2]]
        ends.append(torch.stack([n_ids[0][src], n_ids[1][dst]]))
        times += [] if when is None else [when]
    return torch.cat(ends, dim=1), torch.cat(times)


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
    pairs, _ = _all_drawn(folder, 2, 12, ('binary', 100))
    assert pairs.size(1) > 40_000
    assert _p_value(pairs, _free(_dense())) > 1e-3
    lopsided = _free(_dense()).double()
    lopsided[:, 3] *= 1.2
    assert _p_value(pairs, lopsided) < 1e-6


def test_triplets_are_alike_likely(folder: str) -> None:
    graph = _dense()
    pairs, _ = _all_drawn(folder, 2, 12, ('triplet', 100))
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


@pytest.mark.parametrize('size', [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize('mode', ['binary', 'triplet'])
def test_links_before_all_other_nodes_get_the_earliest_one(tmp_path, mode, size):
    """As PyG's loader does; node 5 is there first."""
    links, times = torch.tensor([[0, 1, 2, 3], [5, 4, 3, 2]]), torch.tensor([0, 9, -1, 9])
    graph = Data(edge_index=links, num_nodes=9, t=torch.tensor([3, 1, 2, 4, 5, 0, 6, 7, 8]))
    root = tmp_path / 'parts'
    partition_graph(graph, 4, root, method=torch.arange(9) % 4)
    options = {'edge_label_index': links, 'edge_label_time': times, 'time_attr': 't'}
    for weight in (None, torch.arange(9).double()):
        sampling = (mode, 2, weight if mode == 'binary' else None, weight)
        pairs, when = _all_drawn(str(root), size, 1, sampling, **options)
        assert pairs.size(1) == 8
        early, late = pairs[:, when < 1], pairs[:, when >= 1]
        assert (early[0 if mode == 'binary' else 1 :] == 5).all()
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
    sampling, relation = {'mode': 'binary', 'amount': 100}, ('a', 'to', 'b')
    pairs, _ = _all_drawn(str(tmp_path / 'parts'), 2, 1, sampling, relation)
    assert _p_value(pairs, ~is_edge) > 1e-3


def _refuses_to_draw(root: str, mode: str) -> None:
    data = pyg_sar.load_shard(root)
    loader = pyg_sar.LinkNeighborLoader(data, [1], neg_sampling=mode, batch_size=2)
    with pytest.raises(ValueError, match=r'neg_sampling.*500 tries'):
        list(loader)


def test_a_graph_without_such_pairs_ends_all_ranks(tmp_path: Path) -> None:
    edges = torch.ones(6, 6).nonzero().t().contiguous()
    partition_graph(Data(edge_index=edges, num_nodes=6), 2, tmp_path / 'parts', method='random')
    for mode in ('binary', 'triplet'):
        run_as_threads(_refuses_to_draw, 2, str(tmp_path / 'parts'), mode)
