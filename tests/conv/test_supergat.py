"""SuperGAT in training: the same negative edges give the same output, loss and gradients."""

from __future__ import annotations

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


def _place_of_id(n_id: Tensor) -> Tensor:
    ids: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ids, n_id)
    return torch.cat(ids).argsort()


def _train(root: Path, mode: Any, kwargs: dict[str, Any]) -> Any:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    negatives = _negatives()
    is_own = torch.isin(negatives[1], data.n_id)
    src = _place_of_id(data.n_id)[negatives[0][is_own]]
    position = torch.zeros(awkward_graph().num_nodes, dtype=torch.int64)
    position[data.n_id] = torch.arange(data.n_id.numel())
    drawn = src, position[negatives[1][is_own]]
    conv = pyg_sar.SARConv(_conv(**kwargs), mode=mode)
    x = data.x.detach().requires_grad_()
    with mock.patch('pyg_sar.conv.around.negative_sampling.draw_negatives', return_value=drawn):
        out = conv(x, data.edge_index)
    attention_loss = conv.get_attention_loss()
    (pyg_sar.over_all_nodes.global_sum(_loss(out, data.n_id)) + attention_loss).backward()
    gradients = [p.grad / dist.get_world_size() for p in conv.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)
    grad = x.grad / dist.get_world_size()
    return data.n_id, out.detach(), attention_loss.detach(), grad, gradients


@pytest.mark.parametrize('how', CUTS)
@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
@pytest.mark.parametrize('kwargs', [{}, {'attention_type': 'SD', 'concat': False}], ids=str)
def test_same_negatives(how: str, mode: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    graph, conv = awkward_graph(), _conv(**kwargs)
    x = graph.x.detach().requires_grad_()
    out = conv(x, graph.edge_index, _negatives())
    attention_loss = conv.get_attention_loss()
    (_loss(out, torch.arange(graph.num_nodes)) + attention_loss).backward()
    for n_id, got, loss, grad, gradients in run_ranks(_train, 3, _cut(tmp_path, how), mode, kwargs):
        assert loss.item() == pytest.approx(attention_loss.item(), abs=TOLERANCE)
        assert n_id.numel() == 0 or (got - out[n_id]).abs().max() <= TOLERANCE
        assert n_id.numel() == 0 or (grad - x.grad[n_id]).abs().max() <= TOLERANCE
        for own, parameter in zip(gradients, conv.parameters(), strict=True):
            assert (own - parameter.grad).abs().max() <= TOLERANCE * parameter.grad.abs().max()


def _sample(root: Path, is_undirected: bool) -> Any:
    data = pyg_sar.local(pyg_sar.load_shard(root))
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
    rows = pairs.shard
    ids = torch.cat([data.n_id, pyg_sar.comm.Exchange(rows).fetch_all([data.n_id])[0]])
    src, dst = pairs.as_subclass(Tensor)
    conv.get_attention_loss().backward()
    return ids[src], data.n_id[dst], conv.att_x.size(0)


@pytest.mark.parametrize('how', CUTS)
@pytest.mark.parametrize('is_undirected', [False, True])
def test_no_negative_is_an_edge(how: str, is_undirected: bool, tmp_path: Path) -> None:
    graph = awkward_graph()
    n = graph.num_nodes
    src, dst, _ = zip(*run_ranks(_sample, 3, _cut(tmp_path, how), is_undirected), strict=True)
    pairs = torch.cat(src) * n + torch.cat(dst)
    assert pairs.unique().numel() == pairs.numel()
    loops = graph.edge_index[0] == graph.edge_index[1]
    num_edges = int((~loops).sum()) + n
    assert abs(pairs.numel() - 2 * num_edges) <= 3
    edges = graph.edge_index[0] * n + graph.edge_index[1]
    turned = graph.edge_index[1] * n + graph.edge_index[0]
    everything = edges if is_undirected else torch.cat([edges, turned])
    assert not torch.isin(pairs, everything).any()
    assert not torch.isin(pairs, torch.arange(n) * (n + 1)).any()
    # Sources are nodes of all ranks.
    owner = torch.empty(n, dtype=torch.int64)
    for rank, nodes in enumerate(dst):
        owner[nodes] = rank
    for rank, nodes in enumerate(src):
        assert nodes.numel() == 0 or (owner[nodes] != rank).any()


def _with_batch(root: Path) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = pyg_sar.SARConv(_conv())
    try:
        conv(data.x, data.edge_index, None, torch.zeros(data.n_id.numel(), dtype=torch.int64))
    except ValueError as error:
        return str(error)
    return ''


def test_a_batch_is_refused(tmp_path: Path) -> None:
    for answer in run_ranks(_with_batch, 3, _cut(tmp_path, 'metis')):
        assert "no 'batch'" in answer


def test_on_a_plain_graph() -> None:
    graph, plain, wrapped = awkward_graph(), _conv(), pyg_sar.SARConv(_conv())
    for conv in (plain, wrapped):
        conv(graph.x, graph.edge_index, _negatives())
    assert torch.equal(plain.get_attention_loss(), wrapped.get_attention_loss())
    assert wrapped.eval().get_attention_loss() == 0
