"""Norms of torch and PyG between layers: statistics of all nodes, with and without graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, weights
from torch import Tensor
from torch.nn import BatchNorm1d, GroupNorm, Identity, Linear, Module, Sequential
from torch.nn import LayerNorm as TorchLayerNorm
from torch_geometric.data import Data
from torch_geometric.nn import (
    BatchNorm,
    DeepGCNLayer,
    DiffGroupNorm,
    GCNConv,
    GENConv,
    GraphNorm,
    GraphSizeNorm,
    InstanceNorm,
    LayerNorm,
    MeanSubtractionNorm,
    MessageNorm,
    PairNorm,
    SAGEConv,
)


class Normed(Module):
    """Two convs, a norm between them; biases would vanish in most norms."""

    def __init__(self, norm: Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 8, bias=False), GCNConv(8, 3)
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor, *batch: Tensor) -> Tensor:
        x = self.norm(self.conv1(x, edge_index), *batch).relu()
        return self.conv2(x, edge_index)


def trained(data: Data, ddp: Ddp, make: Callable[[], Module], *batch: Tensor) -> Results:
    """Three steps, then the output in evaluation."""
    torch.manual_seed(0)
    model = ddp(make().double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, *batch)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, model)
    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index, *batch)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


def batch_norm_of_torch(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(BatchNorm1d(8)))


def batch_norm_without_running_statistics(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(BatchNorm1d(8, track_running_stats=False)))


def batch_norm_with_cumulative_mean(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(BatchNorm1d(8, momentum=None)))


def batch_norm_of_pyg(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(BatchNorm(8)))


def functional_batch_norm(data: Data, ddp: Ddp) -> Results:
    class Norm(Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x, None, None, training=True)

    return trained(data, ddp, lambda: Normed(Norm()))


def layer_norm_of_torch(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(TorchLayerNorm(8)))


def layer_norm_of_the_graph(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(LayerNorm(8, mode='graph')))


def layer_norm_of_nodes(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(LayerNorm(8, mode='node')))


def graph_norm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(GraphNorm(8)))


def graph_norm_of_several_graphs(data: Data, ddp: Ddp) -> Results:
    """The class takes the place of the number of the graph."""
    return trained(data, ddp, lambda: Normed(GraphNorm(8)), data.y)


def instance_norm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(InstanceNorm(8, affine=True)))


def instance_norm_of_several_graphs(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(InstanceNorm(8)), data.y)


def pair_norm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(PairNorm()))


def pair_norm_scaled_individually(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(PairNorm(scale_individually=True)))


def mean_subtraction(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(MeanSubtractionNorm()))


def mean_subtraction_with_zero_batch(data: Data, ddp: Ddp) -> Results:
    batch = torch.zeros(data.num_nodes, dtype=torch.long)
    return trained(data, ddp, lambda: Normed(MeanSubtractionNorm()), batch)


def graph_size_norm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(GraphSizeNorm()))


def diff_group_norm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(DiffGroupNorm(8, groups=3)))


def group_norm_of_rows(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(GroupNorm(2, 8)))


def message_norm(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = SAGEConv(6, 6), Linear(6, 3)
            self.norm = MessageNorm(learn_scale=True)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(x + self.norm(x, self.conv(x, edge_index)))

    return trained(data, ddp, Model)


def frozen_batch_norm(data: Data, ddp: Ddp) -> Results:
    """Statistics are taken once, in training; then the norm is in evaluation for good."""
    torch.manual_seed(0)
    model = ddp(Normed(BatchNorm1d(8)).double())
    with torch.no_grad():
        model(data.x, data.edge_index)
    for module in model.modules():
        if isinstance(module, BatchNorm1d):
            module.eval()
            module.weight.requires_grad_(False)

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index), data.y)

    losses = descend(loss_of, [p for p in model.parameters() if p.requires_grad])
    return {'losses': losses, 'weights': weights(model)}


def sequential_with_norms(data: Data, ddp: Ddp) -> Results:
    """A model of rows alone."""
    torch.manual_seed(0)
    model = Sequential(
        Linear(6, 8, bias=False), BatchNorm1d(8), torch.nn.ReLU(), Identity(), Linear(8, 3)
    )
    model = ddp(model.double())
    losses = descend(lambda: F.cross_entropy(model(data.x), data.y), model)
    return {'losses': losses, 'out': model.eval()(data.x), 'weights': weights(model)}


def norm_of_the_output(data: Data, ddp: Ddp) -> Results:
    """A norm outside of the model, with weights of its own that are trained."""
    torch.manual_seed(0)
    model, norm = ddp(Linear(6, 3, bias=False).double()), ddp(BatchNorm1d(3).double())

    def loss_of() -> Tensor:
        return F.cross_entropy(norm(model(data.x)), data.y)

    losses = descend(loss_of, [*model.parameters(), *norm.parameters()])
    return {'losses': losses, 'weights': weights(model), 'norm': weights(norm)}


def norm_of_masked_rows(data: Data, ddp: Ddp) -> Results:
    """BatchNorm of the training nodes alone."""
    torch.manual_seed(0)
    model = ddp(Sequential(Linear(6, 8, bias=False), BatchNorm1d(8), Linear(8, 3)).double())
    mask = data.train_mask
    losses = descend(lambda: F.cross_entropy(model(data.x[mask]), data.y[mask]), model)
    return {'losses': losses, 'weights': weights(model)}


def deep_gcn_layers(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = Linear(6, 8), Linear(8, 3)
            self.layers = torch.nn.ModuleList(
                DeepGCNLayer(
                    GENConv(8, 8, learn_t=True, num_layers=1),
                    LayerNorm(8, affine=True),
                    torch.nn.ReLU(),
                    block=block,
                )
                for block in ('res+', 'dense', 'res')
                if block != 'dense'
            )

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.encode(x)
            for layer in self.layers:
                x = layer(x, edge_index)
            return self.decode(x)

    return trained(data, ddp, Model)
