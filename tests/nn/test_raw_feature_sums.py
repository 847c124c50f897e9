"""The first layer's aggregation of raw features is kept, and never when it would be another."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from few import few
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch_geometric import nn as pyg

import pyg_sar
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.ranks import rank
from pyg_sar.nn.reuse import SUMS
from pyg_sar.shard.blocks import plan_of

GRAPH = small_graph()

CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'SAGE mean': lambda: pyg.SAGEConv(6, 5),
    'SAGE sum': lambda: pyg.SAGEConv(6, 5, aggr='sum'),
    'GraphConv': lambda: pyg.GraphConv(6, 5),
    'GIN': lambda: pyg.GINConv(torch.nn.Linear(6, 5)),
    'SG': lambda: pyg.SGConv(6, 5),
}


def _counted() -> Any:
    """Counts the exchanges of rows that this process starts."""
    return mock.patch.object(
        Exchange, 'all_gather_halo', autospec=True, side_effect=Exchange.all_gather_halo
    )


def _step(model: torch.nn.Module, x: Tensor, edge_index: Tensor, *args: Any) -> list[Tensor]:
    model.zero_grad()
    out = model(x, edge_index, *args)
    out.square().sum().backward()
    found = [out.detach()]
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad.clone())
    return found


@pytest.mark.parametrize('name', few(CONVS))
@on_ranks(kind='empty part')
def test_exact_and_fetched_once(data, name):
    """Steps and evaluations in turn, features changed in place, then replaced."""
    torch.manual_seed(1)
    plain = CONVS[name]().double()
    model, x = pyg_sar.DistributedDataParallel(copy.deepcopy(plain)), data.x.clone()

    def check(whole: Tensor, fetches: bool, *, trains: bool = True) -> None:
        want = _step(plain, whole, GRAPH.edge_index)
        with _counted() as fetch, torch.set_grad_enabled(trains):
            found = [model(x, data.edge_index)] if not trains else _step(model, x, data.edge_index)
        assert bool(fetch.call_count) == fetches
        for own, each in zip(found, want, strict=trains):
            assert_close(pyg_sar.gather(own), each, tolerance=1e-10)

    check(GRAPH.x, True)
    check(GRAPH.x, False)
    check(GRAPH.x, False, trains=False)
    x.mul_(2)
    check(GRAPH.x * 2, True)
    check(GRAPH.x * 2, False)
    x = x.clone() + 1
    check(GRAPH.x * 2 + 1, True)


def _forwards(model: torch.nn.Module, data: Any, change: Callable[[int], object]) -> list[int]:
    """Exchanges of some forwards, whose outputs are the same."""
    outs, counts = [], []
    for epoch in range(4):
        if rank() == 1:
            change(epoch)
        with _counted() as fetch:
            outs.append(model(data.x, data.edge_index).detach())
        counts.append(fetch.call_count)
    assert all(torch.equal(out, outs[0]) for out in outs)
    return counts


@on_ranks()
def test_ranks_keep_and_drop_together(data):
    def change(epoch: int) -> None:
        data.x = data.x.clone() if epoch == 2 else data.x

    assert _forwards(
        pyg_sar.DistributedDataParallel(pyg.SAGEConv(6, 5).double()), data, change
    ) == [1, 0, 1, 0]


@on_ranks(1, 3)
def test_freed_with_the_features(data):
    conv = pyg_sar.SARConv(pyg.SAGEConv(6, 5).double())
    plan = plan_of(data.edge_index.handle)
    x = data.x.clone()
    conv(x, data.edge_index)
    assert len(SUMS.get(plan)) == 1
    del x
    gc.collect()
    assert len(SUMS.get(plan)) == 0
    with torch.no_grad():  # nothing is kept where nothing is learned
        conv(data.x, data.edge_index)
    assert len(SUMS.get(plan)) == 0


@on_ranks(1, 3)
def test_a_result_that_was_written_to_is_computed_again(data):
    class Writes(pyg.MessagePassing):  # type: ignore[misc]
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.propagate(edge_index, x=x)
            return out.add_(1)

        def message(self, x_j: Tensor) -> Tensor:
            return x_j

    conv = pyg_sar.SARConv(Writes(aggr='sum'))
    first, second = (conv(data.x, data.edge_index).clone() for _ in range(2))
    assert torch.equal(first, second)


@on_ranks(1, 3)
def test_an_output_is_nobody_elses(data):
    """Writing into one leaves what is kept, and what others were given, alone."""
    conv = pyg_sar.SARConv(pyg.SimpleConv('sum'))
    first = conv(data.x, data.edge_index)
    before = first.clone()
    second = conv(data.x, data.edge_index)
    second.mul_(3)
    assert torch.equal(first, before)
    first.zero_()
    assert torch.equal(second, 3 * before)
    with _counted() as fetch:
        assert torch.equal(conv(data.x, data.edge_index), before)
    assert fetch.call_count == 0
