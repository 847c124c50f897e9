"""Lazy layers get their shapes at the first forward of DistributedDataParallel, on equal values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike, cut_of
from few import few
from on_ranks import on_threads
from ranks import run_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch_geometric.nn import BatchNorm, GATConv, SAGEConv

import pyg_sar
from pyg_sar.comm.ranks import rank

LR, EPOCHS = 0.05, 3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv((-1, -1), 8, add_self_loops=False)
        self.lin = torch.nn.LazyLinear(8)
        self.norm = BatchNorm(8)
        self.second = SAGEConv((-1, -1), 3)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.first(x, edge_index) + self.lin(x)).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.encode(x, edge_index), edge_index)


def _first_values(data: Any, seed: int) -> dict[str, Tensor]:
    """What plain PyG draws in the dry run that its examples make."""
    torch.manual_seed(seed)
    model = Net().double().eval()
    with torch.no_grad():
        model(data.x, data.edge_index)
    return model.state_dict()


def _train(model: Any, data: Any) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    losses = []
    for _ in range(EPOCHS):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _on_ranks(root: str, how: str) -> Any:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(7 + 1000 * rank() * (how != 'one seed'))
    model = pyg_sar.DistributedDataParallel(Net().double())
    with torch.no_grad():
        if how == 'a dry run':
            model.eval()(data.x, data.edge_index)
        if how == 'a method':
            model.module.eval().encode(data.x, data.edge_index)
    model.train()
    if how == 'a copy':
        model = copy.deepcopy(model)
    losses = _train(model, data)
    return losses, {k: v.clone() for k, v in model.module.state_dict().items()}


@pytest.mark.parametrize('how', few(['one seed', 'other seeds', 'a dry run', 'a copy', 'a method']))
@pytest.mark.parametrize('world_size', [1, 3])
def test_as_plain_pyg_after_its_dry_run(how, world_size):
    """The optimizer is made before the parameters have shapes."""
    graph = small_graph()
    model = Net().double()
    model.load_state_dict(_first_values(graph, 7))
    want = _train(model, graph)
    # Threads would share one generator.
    for losses, state in run_ranks(_on_ranks, world_size, cut_of(small_graph, 3), how):
        assert losses == pytest.approx(want, abs=1e-10, rel=0)
        for name, value in model.state_dict().items():
            assert_close(state[name], value, tolerance=1e-9)


def _loaded(data: Any, wrap: Wrap) -> Tensor:
    model = wrap(Net().double())
    getattr(model, 'module', model).load_state_dict(_first_values(small_graph(), 3))
    return model.eval()(data.x, data.edge_index).detach()


def test_values_that_are_loaded_first():
    assert_alike(_loaded, tolerance=1e-12)


@on_threads(3)
def test_widths_that_differ_are_told():
    model = pyg_sar.DistributedDataParallel(torch.nn.Sequential(torch.nn.LazyLinear(4), Net()))
    with pytest.raises(ValueError, match='lazy'):
        model.module[0](torch.ones(5, 3 + rank()))
