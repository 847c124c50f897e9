"""What a training step has computed is freed at once, not when garbage is collected."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from few import few
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    MedianAggregation,
    MessagePassing,
    SAGEConv,
    TransformerConv,
)

import pyg_sar

CONVS: dict[str, Callable[[], Module]] = {
    'linear': lambda: SAGEConv(8, 8),
    'normalised': lambda: GCNConv(8, 8),
    'weighted': lambda: GATConv(8, 8),
    'replay': lambda: TransformerConv(8, 8),
    'gather': lambda: SAGEConv(8, 8, aggr=MedianAggregation()),
}


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
def test_a_step_leaves_no_activations(name: str, tmp_path: Path, garbage: list[object]) -> None:
    generator = torch.Generator().manual_seed(0)
    graph = Data(
        x=torch.randn(60, 8, generator=generator),
        edge_index=torch.randint(60, (2, 400), generator=generator),
    )
    earlier = {id(each): each for each in gc.get_objects()}  # of other tests
    pyg_sar.partition_graph(graph, 3, tmp_path / 'parts')
    data = pyg_sar.load_shard(tmp_path / 'parts')
    model = pyg_sar.DistributedDataParallel(CONVS[name]())
    for _ in range(3):
        model(data.x, data.edge_index).square().mean().backward()
    gc.collect()
    found = [t for t in garbage if isinstance(t, Tensor) and t.is_floating_point() and t.dim()]
    found = [t for t in found if id(t) not in earlier]
    assert [tuple(t.shape) for t in found if t.size(0) >= 60] == []


class Keeps(MessagePassing):
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


def test_a_conv_that_keeps_weights_keeps_those_of_one_step(tmp_path: Path) -> None:
    edge_index = torch.randint(60, (2, 1009), generator=torch.Generator().manual_seed(0))
    graph = Data(x=torch.randn(60, 8), edge_index=edge_index)
    pyg_sar.partition_graph(graph, 3, tmp_path / 'parts')
    data, conv = pyg_sar.load_shard(tmp_path / 'parts'), Keeps()
    model, counts = pyg_sar.DistributedDataParallel(conv), []
    for _ in range(4):
        model(data.x, data.edge_index).square().mean().backward()
        gc.collect()
        tensors = [t for t in gc.get_objects() if issubclass(type(t), Tensor)]
        with torch._C.DisableTorchFunctionSubclass():  # other tests may have left rows
            counts.append(sum(t.dim() > 0 and t.size(0) == 1009 for t in tensors))
        del tensors
    assert conv.weights is not None
    assert conv.weights.requires_grad
    assert counts[1] == counts[3]
