"""Convs that users write: what they do in forward, message and update."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric.data import Data
from torch_geometric.nn import (
    MessagePassing,
    TransformerConv,
)
from torch_geometric.utils import add_self_loops, degree, softmax


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


class Conv(MessagePassing):
    """6 channels to 3; the messages are what a program is about.

    Subclasses differ in name: PyG names the code that it generates for one by it.
    """

    def __init__(self, aggr: str | list[str] = 'add', num: int = 6) -> None:
        super().__init__(aggr=aggr)
        self.lin = Linear(num, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))


def gcn_of_the_tutorial(data: Data, ddp: Ddp) -> Results:
    """Self loops and degrees in forward, as PyG's tutorial writes them."""

    class TutorialGCN(Conv):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edge_index
            deg_inv_sqrt = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
            norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
            return self.propagate(edge_index, x=self.lin(x), norm=norm)

        def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
            return norm.view(-1, 1) * x_j

    return trained(data, ddp, TutorialGCN)


def edge_conv_of_the_tutorial(data: Data, ddp: Ddp) -> Results:
    class TutorialEdge(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='max')
            self.mlp = mlp(12, 8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x)

        def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return self.mlp(torch.cat([x_i, x_j - x_i], dim=-1))

    return trained(data, ddp, TutorialEdge)


def mean_taken_off_in_the_conv(data: Data, ddp: Ddp) -> Results:
    class Centred(Conv):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.lin(x)
            return self.propagate(edge_index, x=h - h.mean(0)) + h.mean(dim=0)

    return trained(data, ddp, Centred)


def normalised_in_the_conv(data: Data, ddp: Ddp) -> Results:
    class Normalised(Conv):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out = self.propagate(edge_index, x=F.normalize(self.lin(x), dim=-1))
            return out / degree(edge_index[1], x.size(0)).clamp(min=1).sqrt().view(-1, 1)

    return trained(data, ddp, Normalised)


def statistics_in_update(data: Data, ddp: Ddp) -> Results:
    """`update` divides what is aggregated by its largest value of all nodes."""

    class InUpdate(Conv):
        def update(self, aggr_out: Tensor) -> Tensor:
            return aggr_out / aggr_out.abs().max()

    return trained(data, ddp, InUpdate)


def statistics_in_message(data: Data, ddp: Ddp) -> Results:
    """A mean over all messages, which is one over all edges."""

    class InMessage(Conv):
        def message(self, x_j: Tensor) -> Tensor:
            return (x_j - x_j.mean(dim=0)).tanh()

    return trained(data, ddp, InMessage)


def several_propagates(data: Data, ddp: Ddp) -> Results:
    class Several(Conv):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = z = self.lin(x)
            for _ in range(3):
                z = 0.3 * h + 0.7 * self.propagate(edge_index, x=z).tanh()
            return z

    return trained(data, ddp, Several)


def several_aggregations(data: Data, ddp: Ddp) -> Results:
    class Aggregations(Conv):
        def __init__(self) -> None:
            super().__init__(['mean', 'max', 'std'], 18)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(self.propagate(edge_index, x=x))

    return trained(data, ddp, Aggregations)


def edge_updater(data: Data, ddp: Ddp) -> Results:
    class Updater(Conv):
        def __init__(self) -> None:
            super().__init__()
            self.att = Parameter(torch.randn(3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.lin(x)
            alpha = self.edge_updater(edge_index, x=h)
            return self.propagate(edge_index, x=h, alpha=alpha)

        def edge_update(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
            logits = (F.leaky_relu(x_i + x_j) * self.att).sum(-1)
            return softmax(logits, index, num_nodes=size_i)

        def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
            return alpha.unsqueeze(-1) * x_j

    return trained(data, ddp, Updater)


def weights_returned_by_attention(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = TransformerConv(6, 3, heads=1, bias=False)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out, (_, alpha) = self.conv(x, edge_index, return_attention_weights=True)
            return out * (1 + alpha.mean())

    return trained(data, ddp, Model)
