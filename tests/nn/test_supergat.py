"""SuperGAT in training: the same negative edges give the same output, loss and gradients."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from few import few
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric.nn import SuperGATConv

import pyg_sar

TOLERANCE = 1e-10
CUTS = ['metis', 'random', 'no nodes']


def _conv(**kwargs: Any) -> SuperGATConv:
    conv = SuperGATConv(8, 6, heads=2, **kwargs).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return conv


def _cut(path: Path, how: str, num_parts: int = 3) -> Path:
    graph = awkward_graph()
    generator = torch.Generator().manual_seed(0)
    method: Any = how
    if how == 'no nodes':
        method = torch.randint(2, (graph.num_nodes,), generator=generator) * 2
    pyg_sar.partition_graph(graph, num_parts, path / how, method=method)
    return path / how


def _negatives() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(awkward_graph().num_nodes, (2, 70), generator=generator)


def _loss(out: Tensor, nodes: Tensor) -> Tensor:
    return (out * (nodes.view(-1, 1) % 5 + 1) / 8).sum()


def _train(root: Path, mode: Any, kwargs: dict[str, Any]) -> Any:
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_conv(**kwargs), mode=mode)
    x = data.x.detach().requires_grad_()
    out = model(x, data.edge_index, _negatives())
    attention_loss = model.module.get_attention_loss()
    (_loss(out, data.n_id) + attention_loss).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    rows = pyg_sar.gather(out).detach(), pyg_sar.gather(x.grad)
    return *rows, attention_loss.detach(), gradients


@pytest.mark.parametrize('how', CUTS)
@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
@pytest.mark.parametrize('kwargs', [{}, {'attention_type': 'SD', 'concat': False}], ids=str)
def test_same_negatives(how: str, mode: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    graph, conv = awkward_graph(), _conv(**kwargs)
    x = graph.x.detach().requires_grad_()
    out = conv(x, graph.edge_index, _negatives())
    attention_loss = conv.get_attention_loss()
    (_loss(out, torch.arange(graph.num_nodes)) + attention_loss).backward()
    for got, grad, loss, gradients in run_ranks(_train, 3, _cut(tmp_path, how), mode, kwargs):
        assert loss.item() == pytest.approx(attention_loss.item(), abs=TOLERANCE)
        assert (got - out).abs().max() <= TOLERANCE
        assert (grad - x.grad).abs().max() <= TOLERANCE
        for own, parameter in zip(gradients, conv.parameters(), strict=True):
            assert (own - parameter.grad).abs().max() <= TOLERANCE * parameter.grad.abs().max()


def _sample(root: Path, is_undirected: bool) -> Tensor:
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
def test_no_negative_is_an_edge(how: str, is_undirected: bool, tmp_path: Path) -> None:
    """The pairs are those of one machine, alike on ranks with other random numbers."""
    graph = awkward_graph()
    n = graph.num_nodes
    ends, *others = run_ranks(_sample, 3, _cut(tmp_path, how), is_undirected)
    assert all(torch.equal(ends, each) for each in others)
    pairs = ends[0] * n + ends[1]
    assert pairs.unique().numel() == pairs.numel()
    edges = graph.edge_index[0] * n + graph.edge_index[1]
    turned = graph.edge_index[1] * n + graph.edge_index[0]
    everything = edges if is_undirected else torch.cat([edges, turned])
    assert pairs.numel()
    assert not torch.isin(pairs, everything).any()
    assert not torch.isin(pairs, torch.arange(n) * (n + 1)).any()


def test_on_a_plain_graph() -> None:
    graph, plain, wrapped = awkward_graph(), _conv(), pyg_sar.SARConv(_conv())
    for conv in (plain, wrapped):
        conv(graph.x, graph.edge_index, _negatives())
    assert torch.equal(plain.get_attention_loss(), wrapped.get_attention_loss())
    assert wrapped.eval().get_attention_loss() == 0
