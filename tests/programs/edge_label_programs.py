"""Edges with labels: they are classified and split as nodes are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.utils import scatter


class EdgeMLP(Module):
    """Scores of edges from both ends and the attributes."""

    def __init__(self, num_out: int = 3) -> None:
        super().__init__()
        self.mlp = mlp(6 + 6 + 4, 8, num_out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        row, col = edge_index
        return self.mlp(torch.cat([x[row], x[col], edge_attr], dim=-1))


def edge_classification(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(EdgeMLP().double())

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index, data.edge_attr), data.edge_type)

    losses = descend(loss_of, model)
    pred = model(data.x, data.edge_index, data.edge_attr).argmax(-1)
    acc = (pred == data.edge_type).sum().item() / data.edge_index.size(1)
    return {'losses': losses, 'pred': pred, 'acc': acc, 'weights': weights(model)}


def edge_regression_after_convs(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(6, 8, 5)
            self.out = Linear(10, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.net(x, edge_index)
            return self.out(torch.cat([h[edge_index[0]], h[edge_index[1]]], dim=1)).squeeze(1)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: F.mse_loss(model(data.x, data.edge_index), data.edge_weight), model)
    return {'losses': losses, 'weights': weights(model)}


def edge_split_by_mask(data: Data, ddp: Ddp) -> Results:
    """Some edges train, the others test; all are messages."""
    torch.manual_seed(0)
    model = ddp(EdgeMLP().double())
    train = data.edge_weight > 0.5

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, data.edge_attr)
        return F.cross_entropy(out[train], data.edge_type[train])

    losses = descend(loss_of, model)
    out = model(data.x, data.edge_index, data.edge_attr)
    acc = (out.argmax(-1) == data.edge_type)[~train].double().mean().item()
    return {'losses': losses, 'acc': acc, 'train': int(train.sum())}


def edges_joined_by_product(data: Data, ddp: Ddp) -> Results:
    """Logits of edges are a bilinear form of both ends, with weights by class."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.bilinear = Net(6, 8, 5), torch.nn.Bilinear(5, 5, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.net(x, edge_index)
            return self.bilinear(h[edge_index[0]], h[edge_index[1]])

    torch.manual_seed(0)
    model = ddp(Model().double())
    weight = torch.bincount(data.edge_type).double().reciprocal()

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index), data.edge_type, weight=weight)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def edges_split_at_random(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(EdgeMLP().double())
    train = torch.rand(data.edge_index.size(1)) < 0.6

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, data.edge_attr)
        return F.cross_entropy(out[train], data.edge_type[train])

    return {'losses': descend(loss_of, model), 'train': train.sum(), 'weights': weights(model)}


@by_order
def edges_split_by_permutation(data: Data, ddp: Ddp) -> Results:
    """The last tenth of the edges of a permutation tests, and is no message."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 5).double())
    perm = torch.randperm(data.edge_index.size(1))
    num_test = perm.numel() // 10
    test, train = data.edge_index[:, perm[:num_test]], data.edge_index[:, perm[num_test:]]

    def loss_of() -> Tensor:
        z = model(data.x, train)
        return F.softplus(-(z[train[0]] * z[train[1]]).sum(-1)).mean()

    losses = descend(loss_of, model)
    z = model(data.x, train)
    return {'losses': losses, 'test': (z[test[0]] * z[test[1]]).sum(-1).sigmoid().mean().item()}


def node_labels_from_edges(data: Data, ddp: Ddp) -> Results:
    """A node is hit if one of its edges scores highly; the loss is of nodes."""
    torch.manual_seed(0)
    model = ddp(EdgeMLP(1).double())
    target = scatter(data.edge_type, data.edge_index[1], 0, data.num_nodes, 'max') == 2

    def loss_of() -> Tensor:
        score = model(data.x, data.edge_index, data.edge_attr).squeeze(-1)
        node = scatter(score, data.edge_index[1], 0, data.num_nodes, 'max')
        return F.binary_cross_entropy_with_logits(node, target.double())

    return {'target': target, 'losses': descend(loss_of, model), 'weights': weights(model)}


def edge_type_statistics(data: Data, ddp: Ddp) -> Results:
    """How often every type of edges joins every pair of classes."""
    y_src, y_dst = data.y[data.edge_index]
    table = torch.zeros(3, 3, 3, dtype=torch.long)
    table.index_put_((data.edge_type, y_src, y_dst), torch.tensor(1), accumulate=True)
    homophily = (y_src == y_dst).double().mean().item()
    mean = torch.stack([data.edge_attr[data.edge_type == t].mean(0) for t in range(3)])
    return {'table': table, 'homophily': homophily, 'mean': mean}
