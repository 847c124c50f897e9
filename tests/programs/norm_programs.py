"""Norms between layers: of torch and of PyG, over all nodes, by graph, in training and frozen."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Program, Results, descend, model_of, supervised, trained, weights
from torch import Tensor
from torch.nn import BatchNorm1d, GroupNorm, Linear, Module, Sequential
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv


class Normed(Module):
    """Two convs, a norm between them; biases would vanish in most norms."""

    def __init__(self, norm: Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 8, bias=False), GCNConv(8, 3)
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor, *batch: Tensor) -> Tensor:
        x = self.norm(self.conv1(x, edge_index), *batch).relu()
        return self.conv2(x, edge_index)


class Functional(Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)


NORMS: dict[str, Callable[[], Module]] = {
    'batch_norm_of_torch': lambda: BatchNorm1d(8),
    'batch_norm_without_running_statistics': lambda: BatchNorm1d(8, track_running_stats=False),
    'batch_norm_with_cumulative_mean': lambda: BatchNorm1d(8, momentum=None),
    'batch_norm_of_pyg': lambda: pyg.BatchNorm(8),
    'functional_batch_norm': Functional,
    'layer_norm_of_torch': lambda: torch.nn.LayerNorm(8),
    'layer_norm_of_the_graph': lambda: pyg.LayerNorm(8, mode='graph'),
    'layer_norm_of_nodes': lambda: pyg.LayerNorm(8, mode='node'),
    'graph_norm': lambda: pyg.GraphNorm(8),
    'instance_norm': lambda: pyg.InstanceNorm(8, affine=True),
    'pair_norm': pyg.PairNorm,
    'pair_norm_scaled_individually': lambda: pyg.PairNorm(scale_individually=True),
    'mean_subtraction': pyg.MeanSubtractionNorm,
    'graph_size_norm': pyg.GraphSizeNorm,
    'diff_group_norm': lambda: pyg.DiffGroupNorm(8, groups=3),
    'group_norm_of_rows': lambda: GroupNorm(2, 8),
}
OF_GRAPHS: dict[str, Callable[[], Module]] = {  # the class is the number of the graph
    'graph_norm_of_several_graphs': lambda: pyg.GraphNorm(8),
    'instance_norm_of_several_graphs': lambda: pyg.InstanceNorm(8),
}
PROGRAMS: dict[str, Program] = {
    name: lambda data, ddp, make=make: trained(data, ddp, lambda: Normed(make()), lr=0.1)
    for name, make in NORMS.items()
} | {
    name: lambda data, ddp, make=make: trained(data, ddp, lambda: Normed(make()), data.y, lr=0.1)
    for name, make in OF_GRAPHS.items()
}


def mean_subtraction_with_zero_batch(data: Data, ddp: Ddp) -> Results:
    batch = torch.zeros(data.num_nodes, dtype=torch.long)
    return trained(data, ddp, lambda: Normed(pyg.MeanSubtractionNorm()), batch)


def message_norm(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = SAGEConv(6, 6), Linear(6, 3)
            self.norm = pyg.MessageNorm(learn_scale=True)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(x + self.norm(x, self.conv(x, edge_index)))

    return trained(data, ddp, Model)


def frozen_batch_norm(data: Data, ddp: Ddp) -> Results:
    """Statistics from passes without gradients; then the norm is in evaluation for good."""
    model = model_of(ddp, lambda: Normed(BatchNorm1d(8)))
    with torch.no_grad():
        for _ in range(2):
            model(data.x, data.edge_index)
    for module in model.modules():
        if isinstance(module, BatchNorm1d):
            module.eval()
            module.weight.requires_grad_(False)
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    return {'losses': losses, 'weights': weights(model)}


def norm_of_the_output_of_rows(data: Data, ddp: Ddp) -> Results:
    """A model of rows alone, and a norm outside of it with weights that are trained."""
    model = model_of(ddp, lambda: Linear(6, 3, bias=False))
    norm = ddp(BatchNorm1d(3).double())
    losses = descend(
        lambda: F.cross_entropy(norm(model(data.x)), data.y),
        [*model.parameters(), *norm.parameters()],
    )
    return {'losses': losses, 'weights': weights(model), 'norm': weights(norm)}


def norm_of_masked_rows(data: Data, ddp: Ddp) -> Results:
    """BatchNorm of the training nodes alone."""
    model = model_of(
        ddp, lambda: Sequential(Linear(6, 8, bias=False), BatchNorm1d(8), Linear(8, 3))
    )
    mask = data.train_mask
    losses = descend(lambda: F.cross_entropy(model(data.x[mask]), data.y[mask]), model)
    return {'losses': losses, 'weights': weights(model)}


def deep_gcn_layers(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = Linear(6, 8), Linear(8, 3)
            self.layers = torch.nn.ModuleList(
                pyg.DeepGCNLayer(
                    pyg.GENConv(8, 8, learn_t=True, num_layers=1),
                    pyg.LayerNorm(8, affine=True),
                    torch.nn.ReLU(),
                    block=block,
                )
                for block in ('res+', 'res')
            )

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.encode(x)
            for layer in self.layers:
                x = layer(x, edge_index)
            return self.decode(x)

    return trained(data, ddp, Model)
