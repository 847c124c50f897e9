"""Negative edges and random orders: the same on any number of ranks; and those of SuperGAT."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from alike import Wrap, as_one_process, cut_of, itself, parallel, take_step
from few import few
from graphs import awkward_graph
from hetero_graphs import WRITES, hetero_graph
from on_ranks import on_ranks
from ranks import run_ranks
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SuperGATConv
from torch_geometric.utils import to_undirected

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.loader import gather_batches

NUM_NODES = 40


def _of_all(pairs: Tensor) -> Tensor:
    """Pairs of all ranks, in an order of their own."""
    pairs = gather_batches(pyg_sar.local(pairs).t()).t()
    return pairs[:, torch.argsort(pairs[1] * NUM_NODES + pairs[0])]


@pytest.mark.parametrize(('ranks', 'parts'), [((n,), n) for n in (1, 2, 3, 4)])
@as_one_process(cut='empty part', tolerance=0)
def test_the_same_on_any_number_of_ranks(
    data: Any, wrap: Wrap, ranks: Any, parts: int
) -> list[Tensor]:
    edges, some = data.edge_index, data.edge_index[:, data.edge_type == 1]
    size, some = (NUM_NODES, some) if wrap is itself else (None, some.flip(0))
    torch.manual_seed(3 + rank())  # only the generator of rank 0 counts
    paired = pyg_sar.negative_sampling(edges, size, paired=True, seed=1)
    assert torch.equal(pyg_sar.local(paired)[1], pyg_sar.local(edges[1]))
    e_id = data.e_id if 'e_id' in data else torch.arange(data.num_edges)
    by_edge = gather_batches(torch.cat(pyg_sar.local((paired, e_id[None]))).t()).t()
    by_edge = by_edge[:, by_edge[3].argsort()]
    src, dst = edges = pyg_sar.gather(edges)
    assert torch.equal(by_edge[:2], edges)
    assert not torch.isin(by_edge[2] * NUM_NODES + dst, src * NUM_NODES + dst).any()
    assert (by_edge[2] != dst).all()
    drawn = (
        pyg_sar.negative_sampling(data.edge_index, size),
        pyg_sar.negative_sampling(data.edge_index, NUM_NODES, 50, seed=1),
        pyg_sar.negative_sampling(some, size, 33, seed=2),
    )
    return [by_edge, *map(_of_all, drawn)]


@pytest.mark.parametrize('num_samples', [0, 1, 39, 40, 41, 1000])
def test_are_no_edges_and_evenly_spread(num_samples: int) -> None:
    edges = small_graph().edge_index
    pairs = pyg_sar.negative_sampling(edges, NUM_NODES, num_samples, seed=4)
    assert pairs.shape == (2, num_samples)
    codes = edges[0] * NUM_NODES + edges[1]
    assert not torch.isin(pairs[0] * NUM_NODES + pairs[1], codes).any()
    assert (pairs[0] != pairs[1]).all()
    counts = torch.bincount(pairs[1], minlength=NUM_NODES)
    assert counts.max() - counts.min() <= 1
    other = pyg_sar.negative_sampling(edges, NUM_NODES, num_samples, seed=5)
    assert num_samples == 0 or not torch.equal(pairs, other)


def test_sources_are_uniform_over_the_others() -> None:
    edges = torch.tensor([[0, 1, 2], [9, 9, 9]])
    pairs = pyg_sar.negative_sampling(edges, 10, 20000, seed=0)
    sources = torch.bincount(pairs[0][pairs[1] == 9], minlength=10)
    assert sources[[0, 1, 2, 9]].sum() == 0
    assert (sources[3:9] - 2000 / 6).abs().max() < 5 * (2000 / 6) ** 0.5


def test_destinations_with_one_sample_more_are_random() -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    counts = torch.zeros(10)
    for seed in range(2000):
        pairs = pyg_sar.negative_sampling(edges, 10, 3, seed=seed)
        counts += torch.bincount(pairs[1], minlength=10)
    assert counts.sum() == 6000
    assert (counts - 600).abs().max() < 5 * 600**0.5


def test_a_node_with_edges_from_all() -> None:
    full = torch.cat([torch.arange(5).repeat(2, 1), torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4]])], 1)
    pairs = pyg_sar.negative_sampling(full, 5, 10, seed=0)
    assert torch.bincount(pairs[1]).tolist() == [2, 2, 2, 2]
    with pytest.raises(ValueError, match='node 4'):
        pyg_sar.negative_sampling(full, 5, paired=True)


def test_of_nothing() -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert pyg_sar.negative_sampling(none).shape == (2, 0)
    assert pyg_sar.negative_sampling(none, paired=True).shape == (3, 0)


def _sample(data: Any, *args: Any, **kwargs: Any) -> Tensor:
    return pyg_sar.negative_sampling(data.edge_index, *args, **kwargs)


WRONG: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    'number of nodes': (
        lambda d: _sample(d, d.num_nodes - 1),
        lambda d: _sample(d, d.num_nodes - 1),
        'num_nodes',
    ),
    'seed': (lambda d: _sample(d, seed=1), _sample, 'same arguments'),
    'count': (lambda d: _sample(d, None, 3), lambda d: _sample(d, None, 4), 'same arguments'),
    'paired count': (lambda d: _sample(d, None, 3, paired=True), _sample, 'paired=True'),
    'share of the edges': (lambda d: _sample(d, None, 0.5), _sample, 'num_neg_samples'),
    'own edges': (
        lambda d: pyg_sar.negative_sampling(pyg_sar.local(d.edge_index), seed=1),
        lambda d: pyg_sar.negative_sampling(pyg_sar.local(d.edge_index), seed=1),
        'pyg_sar.local',
    ),
}
"""What rank 1 does, what rank 0 does, and what both are told."""


@pytest.mark.parametrize('name', WRONG)
@on_ranks(2, by='threads')
def test_wrong(data, name):
    of_rank_1, of_rank_0, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        (of_rank_1 if rank() == 1 else of_rank_0)(data)


def _undirected() -> Data:
    """With the number of the pair of every edge."""
    graph = small_graph()
    graph = Data(x=graph.x, edge_index=to_undirected(graph.edge_index))
    ends = graph.edge_index.sort(dim=0).values
    graph.pair = torch.unique(ends, dim=1, return_inverse=True)[1]
    return graph


def test_pairs_of_edges_dropped_together() -> None:
    """Draws by the number of the pair keep both of its edges, or none."""
    graph, data = _undirected(), pyg_sar.load_shard(cut_of(_undirected, 3))
    keeps = pyg_sar.utils.rng.uniform(7, data.pair) >= 0.5
    kept = graph.edge_index[:, data.e_id[keeps]]
    codes, turned = (pairs[0] * NUM_NODES + pairs[1] for pairs in (kept, kept.flip(0)))
    assert torch.equal(codes.sort().values, turned.sort().values)
    assert 0 < codes.numel() < data.num_edges


def test_a_relation_of_two_types() -> None:
    data = pyg_sar.load_shard(cut_of(hetero_graph, 2, 'random'))
    with pytest.raises(ValueError, match='between nodes of one type'):
        pyg_sar.negative_sampling(data[WRITES].edge_index)


# SuperGAT in training: of the same negative edges the same output, loss and gradients


def _conv(**kwargs: Any) -> SuperGATConv:
    conv = SuperGATConv(8, 6, heads=2, **kwargs).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return conv


CUTS = {'metis': 'metis', 'random': 'random', 'no nodes': [i * 7 % 5 % 2 * 2 for i in range(60)]}


def _negatives() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(awkward_graph().num_nodes, (2, 70), generator=generator)


@pytest.mark.parametrize('cut', CUTS.values(), ids=CUTS)
@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
@pytest.mark.parametrize('kwargs', [{}, {'attention_type': 'SD', 'concat': False}], ids=str)
@as_one_process(graph=awkward_graph, rtol=0)
def test_same_negatives(
    data: Any, wrap: Wrap, kwargs: dict[str, Any], mode: Any, cut: Any
) -> list[Any]:
    model = parallel(_conv(**kwargs), wrap, mode=mode)
    losses: list[Tensor] = []

    def loss(out: Tensor) -> Tensor:
        losses.append(getattr(model, 'module', model).get_attention_loss())
        return out.square().sum() + losses[0]

    return [*take_step(model, data, _negatives(), loss=loss), losses[0].detach()]


def _negatives_of_a_conv(root: str, is_undirected: bool) -> Tensor:
    random.seed(dist.get_rank())
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(_conv(is_undirected=is_undirected, neg_sample_ratio=2.0))
    drawn, draw = [], SuperGATConv.negative_sampling
    with mock.patch.object(
        type(conv),
        'negative_sampling',
        autospec=True,
        side_effect=lambda *args: drawn.append(draw(*args)) or drawn[0],
    ):
        conv(data.x, data.edge_index)
    (pairs,) = drawn
    conv.get_attention_loss().backward()
    return pyg_sar.gather(pairs)


@pytest.mark.parametrize('how', CUTS)
@pytest.mark.parametrize('is_undirected', [False, True])
def test_no_negative_is_an_edge(how: str, is_undirected: bool) -> None:
    """The pairs are those of one machine, alike on ranks with other random numbers."""
    graph = awkward_graph()
    n = graph.num_nodes
    root = cut_of(awkward_graph, 3, CUTS[how])
    ends, *others = run_ranks(_negatives_of_a_conv, 3, root, is_undirected)
    assert all(torch.equal(ends, each) for each in others)
    pairs = ends[0] * n + ends[1]
    assert pairs.unique().numel() == pairs.numel() > 0
    there, back = (e[0] * n + e[1] for e in (graph.edge_index, graph.edge_index.flip(0)))
    assert not torch.isin(pairs, there if is_undirected else torch.cat([there, back])).any()
    assert not torch.isin(pairs, torch.arange(n) * (n + 1)).any()


def test_on_a_plain_graph() -> None:
    graph, plain, wrapped = awkward_graph(), _conv(), pyg_sar.SARConv(_conv())
    for conv in (plain, wrapped):
        conv(graph.x, graph.edge_index, _negatives())
    assert torch.equal(plain.get_attention_loss(), wrapped.get_attention_loss())
    assert wrapped.eval().get_attention_loss() == 0
