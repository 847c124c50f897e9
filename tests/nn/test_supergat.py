"""SuperGAT in training: the same negative edges give the same output, loss and gradients."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from alike import Wrap, as_one_process, cut_of, parallel, take_step
from few import few
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric.nn import SuperGATConv

import pyg_sar


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


def _sample(root: str, is_undirected: bool) -> Tensor:
    random.seed(dist.get_rank())
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(_conv(is_undirected=is_undirected, neg_sample_ratio=2.0))
    drawn = []
    with mock.patch.object(
        type(conv),
        'negative_sampling',
        autospec=True,
        side_effect=lambda *args: drawn.append(SuperGATConv.negative_sampling(*args)) or drawn[0],
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
    ends, *others = run_ranks(_sample, 3, root, is_undirected)
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
