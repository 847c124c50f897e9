"""The first layer's aggregation of raw features is kept, and never when it would be another."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from few import few
from graphs import awkward_graph
from ranks import run_ranks
from small_graphs import assert_close
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import aggr

import pyg_sar
from pyg_sar.comm import Exchange
from pyg_sar.shard.plan import plan_of

NUM_NODES = 60

CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'SAGE mean': lambda: pyg.SAGEConv(6, 5),
    'SAGE sum': lambda: pyg.SAGEConv(6, 5, aggr='sum'),
    'GraphConv': lambda: pyg.GraphConv(6, 5),
    'GIN': lambda: pyg.GINConv(torch.nn.Linear(6, 5)),
    'SG': lambda: pyg.SGConv(6, 5),
}


@pytest.fixture(scope='module')
def graph() -> Data:
    data = awkward_graph(NUM_NODES)
    data.x = data.x[:, :6].contiguous()
    return data


@pytest.fixture(scope='module')
def root(graph: Data, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp('kept') / 'parts'
    pyg_sar.partition_graph(graph, 3, path, method=1 + torch.arange(NUM_NODES) % 2)
    return str(path)


class _Counted:
    """Counts the exchanges of rows that this process starts."""

    def __init__(self) -> None:
        self.count = 0
        self.fetch = Exchange.fetch

    def __enter__(self) -> _Counted:
        def fetch(exchange: Exchange, *args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return self.fetch(exchange, *args, **kwargs)

        Exchange.fetch = fetch  # type: ignore[method-assign]
        return self

    def __exit__(self, *args: Any) -> None:
        Exchange.fetch = self.fetch  # type: ignore[method-assign]


def _step(model: torch.nn.Module, x: Tensor, edge_index: Tensor, *args: Any) -> list[Tensor]:
    model.zero_grad()
    out = model(x, edge_index, *args)
    out.square().sum().backward()
    found = [out.detach()]
    for parameter in model.parameters():
        assert parameter.grad is not None
        grad = parameter.grad.clone()
        if dist.is_initialized():
            dist.all_reduce(grad)
        found.append(grad)
    return found


def _epochs(root: str, name: str) -> tuple[list[list[Tensor]], list[int], Tensor]:
    """Steps and evaluations in turn, features changed in place, then replaced."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(1)
    model = pyg_sar.wrap(CONVS[name]().double())
    answers, counts = [], []

    def train() -> None:
        with _Counted() as counted:
            answers.append(_step(model, data.x, data.edge_index))
        counts.append(counted.count)

    train()
    train()
    with torch.no_grad(), _Counted() as counted:
        answers.append([model(data.x, data.edge_index)])
    counts.append(counted.count)
    data.x.mul_(2)
    train()
    train()
    data.x = data.x.clone() + 1
    train()
    return answers, counts, data.n_id


def _expected(graph: Data, name: str) -> list[list[Tensor]]:
    torch.manual_seed(1)
    model = CONVS[name]().double()
    once = _step(model, graph.x, graph.edge_index)
    doubled = _step(model, graph.x * 2, graph.edge_index)
    replaced = _step(model, graph.x * 2 + 1, graph.edge_index)
    return [once, once, once[:1], doubled, doubled, replaced]


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('name', few(CONVS))
def test_exact_and_fetched_once(graph: Data, root: str, name: str, world_size: int) -> None:
    expected = _expected(graph, name)
    for answers, counts, n_id in run_ranks(_epochs, world_size, root, name):
        for found, wanted in zip(answers, expected, strict=True):
            assert_close(found[0], wanted[0][n_id])
            for grad, wanted_grad in zip(found[1:], wanted[1:], strict=True):
                assert_close(grad, wanted_grad)
        assert [bool(count) for count in counts] == [True, False, False, True, False, True]


def _one_rank_replaces(root: str) -> tuple[list[Tensor], list[int]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(1)
    model = pyg_sar.wrap(CONVS['SAGE mean']().double())
    outs, counts = [], []
    for epoch in range(4):
        if epoch == 2 and dist.get_rank() == 1:
            data.x = data.x.clone()
        with _Counted() as counted:
            outs.append(model(data.x, data.edge_index).detach())
        counts.append(counted.count)
    return outs, counts


def test_ranks_keep_and_drop_together(root: str) -> None:
    for outs, counts in run_ranks(_one_rank_replaces, 3, root):
        assert all(torch.equal(out, outs[0]) for out in outs)
        assert counts == [1, 0, 1, 0]


def _unseen_changes(root: str, ranks: list[int], has_weight: bool) -> list[Tensor]:
    """Gradients and outputs of kept results and anew, before and after what torch does not see."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(1)
    x, weight = data.x.clone(), data.edge_weight.double()
    kind = pyg.GCNConv if has_weight else pyg.SAGEConv
    model = pyg_sar.wrap(kind(6, 5).double())
    args = [weight] if has_weight else []
    changed = weight if has_weight else x
    found = []
    for change in (
        lambda: None,
        lambda: changed.data.mul_(2),
        lambda: np.copyto(changed.numpy(), changed.numpy()[::-1].copy()),
        lambda: setattr(changed, 'data', changed.data + 1),
    ):
        if not dist.is_initialized() or dist.get_rank() in ranks:
            change()
        for _ in range(2):
            kept = _step(model, x, data.edge_index, *args)
            anew = _step(model, x.clone(), data.edge_index, *(w.clone() for w in args))
            assert all(torch.equal(a, b) for a, b in zip(kept, anew, strict=True))
        found.append(kept[0])
    return found


@pytest.mark.parametrize('has_weight', [False, True])
@pytest.mark.parametrize(('world_size', 'ranks'), [(1, [0]), (3, [0, 1, 2]), (3, [1])])
def test_what_torch_does_not_see_is_seen(
    root: str, world_size: int, ranks: list[int], has_weight: bool
) -> None:
    """Of features in a sum that is kept, and of weights in a normalisation that is kept."""
    outs = run_ranks(_unseen_changes, world_size, root, ranks, has_weight)
    for before, *later in outs if world_size == 1 else [outs[1]]:
        assert all(out.numel() and not torch.equal(out, before) for out in later)


def _kept_for(data: Data) -> Any:
    plan = plan_of(data.edge_index, data.edge_index.shard)
    return plan.cache['kept sums']


def test_freed_with_the_features(root: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = pyg_sar.SARConv(pyg.SAGEConv(6, 5).double())
    x = data.x.clone()
    conv(x, data.edge_index)
    assert len(_kept_for(data)) == 1
    del x
    gc.collect()
    assert len(_kept_for(data)) == 0
    with torch.no_grad():  # nothing is kept where nothing is learned
        conv(data.x, data.edge_index)
    assert len(_kept_for(data)) == 0


def test_a_result_that_was_written_to_is_computed_again(root: str) -> None:
    class Writes(pyg.MessagePassing):  # type: ignore[misc]
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.propagate(edge_index, x=x)
            return out.add_(1)

        def message(self, x_j: Tensor) -> Tensor:
            return x_j

    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = pyg_sar.SARConv(Writes(aggr='sum'))
    first, second = (conv(data.x, data.edge_index).clone() for _ in range(2))
    assert torch.equal(first, second)


def test_other_weights_and_other_aggregations(graph: Data, root: str) -> None:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    plain = pyg.GraphConv(6, 5).double()
    conv = pyg_sar.SARConv(copy.deepcopy(plain))
    order = torch.argsort(data.n_id)
    weight = data.edge_weight.double()
    for _ in range(2):
        for factor in (1.0, 2.0):
            found = conv(data.x, data.edge_index, weight * factor)
            wanted = plain(graph.x, graph.edge_index, graph.edge_weight.double() * factor)
            assert_close(found[order], wanted)
    for _ in range(2):
        weight.mul_(3)
        found = conv(data.x, data.edge_index, weight)
        same = conv(data.x, data.edge_index, weight.clone())
        assert torch.equal(found, same)
    for conv_aggr in ('mean', 'sum', aggr.MultiAggregation(['sum', 'mean'], mode='sum')):
        plain = pyg.SAGEConv(6, 5, aggr=conv_aggr).double()
        conv = pyg_sar.SARConv(copy.deepcopy(plain))
        for _ in range(2):
            assert_close(conv(data.x, data.edge_index)[order], plain(graph.x, graph.edge_index))


def test_an_output_is_nobody_elses(root: str) -> None:
    """Writing into one leaves what is kept, and what others were given, alone."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = pyg_sar.SARConv(pyg.SimpleConv('sum'))
    first = conv(data.x, data.edge_index)
    before = first.clone()
    second = conv(data.x, data.edge_index)
    second.mul_(3)
    assert torch.equal(first, before)
    first.zero_()
    assert torch.equal(second, 3 * before)
    with _Counted() as counted:
        assert torch.equal(conv(data.x, data.edge_index), before)
    assert counted.count == 0


def _hook_on_one_rank(root: str) -> tuple[list[Tensor], list[int]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(1)
    model = pyg_sar.wrap(CONVS['SAGE mean']().double())
    outs, counts = [], []
    for epoch in range(3):
        if epoch == 1 and dist.get_rank() == 1:
            model.aggr_module.register_forward_hook(lambda *_: None)
        with _Counted() as counted:
            outs.append(model(data.x, data.edge_index).detach())
        counts.append(counted.count)
    return outs, counts


def test_a_hook_on_one_rank_sees_the_aggregation(root: str) -> None:
    for outs, counts in run_ranks(_hook_on_one_rank, 3, root):
        assert all(torch.equal(out, outs[0]) for out in outs)
        assert counts == [1, 1, 1]
