"""What a training step has computed is freed at once, not when garbage is collected."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from alike import cut_of
from few import few
from graphs import awkward_graph
from torch import Tensor
from torch.nn import Module
from torch_geometric import nn as pyg

import pyg_sar

CONVS: dict[str, Callable[[], Module]] = {
    'linear': lambda: pyg.SAGEConv(8, 8),
    'normalised': lambda: pyg.GCNConv(8, 8),
    'weighted': lambda: pyg.GATConv(8, 8),
    'replay': lambda: pyg.TransformerConv(8, 8),
    'gather': lambda: pyg.SAGEConv(8, 8, aggr='median'),
}

_graph = functools.partial(awkward_graph, 60, 1000)


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """What only the collector would free; it does not run on its own."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


@pytest.mark.parametrize('name', few(CONVS, every=2))
def test_a_step_leaves_no_activations(name: str, garbage: list[object]) -> None:
    earlier = {id(each): each for each in gc.get_objects()}  # of other tests
    data = pyg_sar.load_shard(cut_of(_graph, 3))
    model = pyg_sar.DistributedDataParallel(CONVS[name]().double())
    for _ in range(3):
        model(data.x, data.edge_index).square().mean().backward()
    gc.collect()
    found = [t for t in garbage if isinstance(t, Tensor) and t.is_floating_point() and t.dim()]
    found = [t for t in found if id(t) not in earlier]
    assert [tuple(t.shape) for t in found if t.size(0) >= 60] == []


class Keeps(pyg.MessagePassing):
    """Holds its last weights, with their history."""

    weights: Tensor | None = None

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.lin = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        self.weights = torch.sigmoid((x_i - x_j).sum(-1, keepdim=True))
        return x_j * self.weights


def test_a_conv_that_keeps_weights_keeps_those_of_one_step() -> None:
    data, conv = pyg_sar.load_shard(cut_of(_graph, 3)), Keeps().double()
    model, counts = pyg_sar.DistributedDataParallel(conv), []
    for _ in range(4):
        model(data.x, data.edge_index).square().mean().backward()
        gc.collect()
        tensors = [t for t in gc.get_objects() if type(t) is Tensor]
        counts.append(sum(t.dim() > 0 and t.size(0) == data.num_edges for t in tensors))
        del tensors
    assert conv.weights is not None
    assert conv.weights.requires_grad
    assert counts[1] == counts[3]
