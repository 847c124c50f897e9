"""Threads of one process that each train a model, as each would alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from alike import assert_bits, cut_of
from few import few
from small_graphs import small_graph
from three_steps import descend
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric import nn as pyg
from torch_geometric.utils import softmax as by_destination

import pyg_sar

NUM_STEPS = 50


class _Attention(pyg.MessagePassing):
    """Calls PyG's softmax by a name of its own."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(aggr='add')
        self.lin = torch.nn.Linear(num_in, num_out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor, index: Tensor, ptr: Any, size_i: int | None) -> Tensor:
        return by_destination(x_j.sum(-1), index, ptr, size_i).view(-1, 1) * x_j


def _pna(num_in: int, num_out: int) -> pyg.PNAConv:
    aggregators, scalers = ['mean', 'std', 'max'], ['identity', 'amplification']
    return pyg.PNAConv(num_in, num_out, aggregators, scalers, deg=torch.tensor([2, 3, 9, 9, 5]))


CONVS: dict[str, Callable[[int, int], pyg.MessagePassing]] = {
    'GAT': lambda num_in, num_out: pyg.GATConv(num_in, num_out, dropout=0.5),
    'GCN': pyg.GCNConv,
    'own': _Attention,
    'Transformer': pyg.TransformerConv,
    'PNA': _pna,
}


def _wrapped(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    # Masks by id, as threads share torch's generator.
    layers = [(CONVS[name](6, 8), 'x, e -> x'), torch.nn.ReLU(), (CONVS[name](8, 3), 'x, e -> x')]
    return pyg_sar.DistributedDataParallel(pyg.Sequential('x, e', layers).double(), dropout_seed=0)


def _train(model: torch.nn.Module, data: Any) -> list[Tensor]:
    """Losses, and the weights in the end."""

    def loss() -> Tensor:
        return cross_entropy(model(data.x, data.edge_index), data.y)

    losses = descend(loss, model, 0.1, NUM_STEPS)
    return [torch.tensor(losses), *(p.detach() for p in model.parameters())]


@pytest.fixture
def turns_are_short() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


PAIRS = [*zip(CONVS, [*CONVS][1:] + [*CONVS][:1], strict=True), ('GAT', 'GAT'), ('own', 'GCN')]


@pytest.mark.parametrize('shares', few([True, False], 2))
@pytest.mark.parametrize(('one', 'other'), few(PAIRS, 2))
@pytest.mark.usefixtures('turns_are_short')
def test_each_trains_as_it_does_alone(one: str, other: str, shares: bool) -> None:
    names = one, other
    root = cut_of(small_graph, 2)
    alone = [_train(_wrapped(name), pyg_sar.load_shard(root)) for name in names]
    shared = pyg_sar.load_shard(root)
    shards = [shared if shares else pyg_sar.load_shard(root) for _ in names]
    models = [_wrapped(name) for name in names]
    start = threading.Barrier(len(names))

    def run(model: torch.nn.Module, shard: Any) -> list[Tensor]:
        start.wait()
        return _train(model, shard)

    with ThreadPoolExecutor(len(names)) as pool:
        found = [*pool.map(run, models, shards)]
    assert_bits(found, alone)
