"""Models as papers have them, of the convs that PyG has."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Parameter
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    GCN2Conv,
    GCNConv,
    GINConv,
    GPSConv,
    JumpingKnowledge,
    MixHopConv,
    PNAConv,
    RGCNConv,
    SAGEConv,
    SGConv,
)
from torch_geometric.utils import degree


def trained(
    data: Data, ddp: Ddp, make: Callable[[], Module], *args: Tensor, lr: float = 0.05
) -> Results:
    """Three steps, then the output in evaluation."""
    torch.manual_seed(0)
    model = ddp(make().double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, *args)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index, *args)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class Jumping(Module):
    """Three layers of a kind of jumping knowledge."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.convs = ModuleList(GCNConv(num, 8) for num in (6, 8, 8))
        self.jump = JumpingKnowledge(mode, channels=8, num_layers=2)
        self.lin = Linear(24 if mode == 'cat' else 8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index).tanh()
            xs.append(x)
        return self.lin(self.jump(xs))


def jumping_by_cat(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Jumping('cat'))


def jumping_by_max(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Jumping('max'))


def jumping_by_lstm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Jumping('lstm'))


def appnp(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp, self.prop = mlp(6, 8, 3), APPNP(K=4, alpha=0.1)

        def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
            return self.prop(self.mlp(x), edge_index, weight)

    return trained(data, ddp, Model, data.edge_weight)


def gcn2_with_residuals(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Linear(6, 8), Linear(8, 3)
            self.convs = ModuleList(GCN2Conv(8, 0.1, 0.5, layer + 1) for layer in range(3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = x_0 = self.first(x).relu()
            for conv in self.convs:
                x = conv(x, x_0, edge_index).relu()
            return self.last(x)

    return trained(data, ddp, Model)


def simplified(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: SGConv(6, 3, K=2, cached=True))


def mixed_hops(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = MixHopConv(6, 4, powers=[0, 1, 2]), Linear(12, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(self.conv(x, edge_index).tanh())

    return trained(data, ddp, Model)


def typed_relations(data: Data, ddp: Ddp) -> Results:
    num_relations = int(data.edge_type.max()) + 1
    return trained(data, ddp, lambda: RGCNConv(6, 3, num_relations, num_bases=2), data.edge_type)


def principal_neighbourhood(data: Data, ddp: Ddp) -> Results:
    """The histogram of degrees comes from the data."""
    deg = torch.bincount(degree(data.edge_index[1], data.num_nodes, dtype=torch.long))

    def make() -> Module:
        return PNAConv(6, 3, ['mean', 'max', 'std'], ['identity', 'amplification'], deg)

    return {'deg': deg} | trained(data, ddp, make)


def graph_transformer(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Linear(6, 8), Linear(8, 3)
            self.gps = GPSConv(8, GINConv(mlp(8, 8, 8)), heads=2, norm='layer_norm')

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.last(self.gps(self.first(x), edge_index))

    return trained(data, ddp, Model)


@by_order
def linkx(data: Data, ddp: Ddp) -> Results:
    """Rows of the adjacency are embedded: a weight for every node of the graph."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.mlp = Parameter(torch.randn(data.num_nodes, 8)), mlp(14, 8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            row, col = edge_index
            a = torch.zeros(x.size(0), 8, dtype=x.dtype).index_add_(0, col, self.table[row])
            return self.mlp(torch.cat([a, x], dim=-1))

    return trained(data, ddp, Model)


def residuals_and_scales(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleList(SAGEConv(6, 6, aggr=aggr) for aggr in ('mean', 'max', 'sum'))
            self.scales, self.lin = Parameter(torch.ones(3)), Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv, scale in zip(self.convs, self.scales, strict=True):
                x = x + scale * F.dropout(conv(x, edge_index), 0.0, self.training).tanh()
            return self.lin(F.dropout(x, 0.5, training=False))

    return trained(data, ddp, Model)
