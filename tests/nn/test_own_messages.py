"""Messages that users write, where a faster form than theirs would differ from it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import assert_alike
from small_graphs import small_graph
from torch import Tensor
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter, softmax


class Conv(MessagePassing):
    """Gives two tensors of nodes to its message."""

    def __init__(self, aggr: str = 'add') -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.lin, self.other = Linear(6, 8), Linear(6, 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.propagate(edge_index, h=self.lin(x), g=self.other(x))


class WithoutGradientScores(Conv):
    def message(self, h_j: Tensor, g_i: Tensor, g_j: Tensor, index: Tensor, dim_size: Any) -> Any:
        with torch.no_grad():
            scores = F.leaky_relu(g_i[:, :1] + g_j[:, :1], negative_slope=0.2)
        return h_j * softmax(scores, index, num_nodes=dim_size)


class WithoutGradientUpdater(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        weight = self.edge_updater(edge_index, g=self.other(x)[:, :1])
        return self.propagate(edge_index, h=self.lin(x), weight=weight)

    def edge_update(self, g_i: Tensor, g_j: Tensor, index: Tensor, size_i: Any) -> Tensor:
        with torch.no_grad():
            return softmax(F.leaky_relu(g_i + g_j, negative_slope=0.2), index, num_nodes=size_i)

    def message(self, h_j: Tensor, weight: Tensor) -> Tensor:
        return h_j * weight


class WithoutGradientDots(Conv):
    def message(self, h_j: Tensor, g_i: Tensor, g_j: Tensor) -> Tensor:
        with torch.no_grad():
            dots = (g_i * g_j).sum(-1, keepdim=True)
        return h_j * dots.tanh()


class WithoutGradientSum(Conv):
    def message(self, h_i: Tensor, h_j: Tensor) -> Tensor:
        return (h_i - h_j).exp()

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: Any) -> Tensor:
        with torch.no_grad():
            total = scatter(inputs, index, 0, dim_size, 'sum')
        return scatter(inputs, index, 0, dim_size, 'max') / (total + 1)


class WithoutGradientMean(WithoutGradientSum):
    @torch.no_grad()
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: Any) -> Tensor:
        return scatter(inputs, index, 0, dim_size, 'mean')

    def update(self, out: Tensor, h: Tensor) -> Tensor:
        return out * h


class UnusedArgument(Conv):
    def message(self, h_j: Tensor, g_j: Tensor) -> Tensor:
        return h_j * g_j.detach()


class ReadByAggregate(Conv):
    """Not by its message."""

    def message(self, h_j: Tensor) -> Tensor:
        return h_j.tanh()

    def aggregate(self, inputs: Tensor, index: Tensor, g: Tensor, dim_size: Any) -> Tensor:
        return g * scatter(inputs, index, 0, dim_size, 'sum')


class ConjugateRows(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.complex(self.lin(x), self.other(x)).view(-1, 2, 4)
        return torch.view_as_real(self.propagate(edge_index, h=h, g=h.conj()))

    def message(self, h_j: Tensor, g_j: Tensor) -> Tensor:
        return h_j * (g_j + 1)


class ConjugateWeights(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, (row, col) = self.lin(x), edge_index
        w = torch.complex(h[row, 0], h[col, 1]).view(-1, 1)
        z = torch.complex(h, self.other(x))
        return torch.view_as_real(self.propagate(edge_index, z=z, w=w, conj=w.conj()))

    def message(self, z_j: Tensor, w: Tensor, conj: Tensor) -> Tensor:
        return z_j * w * (conj + 2).conj()


class ComplexAttention(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = torch.complex(self.lin(x), self.other(x))
        return torch.view_as_real(self.propagate(edge_index, z=z))

    def message(self, z_i: Tensor, z_j: Tensor, index: Tensor, dim_size: Any) -> Tensor:
        scores = (z_i.conj() * z_j).real.sum(-1, keepdim=True)
        return z_j * softmax(scores, index, num_nodes=dim_size)


class ViewWithoutGradient(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        with torch.no_grad():
            g = h.view(-1, 2, 4)
        return self.propagate(edge_index, h=h.view(-1, 2, 4), g=g)

    def message(self, h_j: Tensor, g_j: Tensor) -> Tensor:
        return h_j * g_j.tanh()


class Reversed(torch.autograd.Function):
    """A view, with the gradient turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -2 * grads[0]


class ReversedView(ViewWithoutGradient):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return self.propagate(edge_index, h=h.view_as(h), g=Reversed.apply(h))


class KeyIsValue(Conv):
    """In a function of x_j that is no sum of products."""

    def __init__(self) -> None:
        super().__init__(aggr='max')

    def message(self, g_i: Tensor, h_j: Tensor) -> Tensor:
        return h_j * (g_i * h_j).sum(-1, keepdim=True).tanh()


class KeyIsValueOfEdges(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return self.propagate(
            edge_index, h=h, e=self.edge_updater(edge_index, h=h, g=self.other(x))
        )

    def edge_update(self, g_i: Tensor, h_j: Tensor) -> Tensor:
        return h_j * (g_i * h_j).sum(-1, keepdim=True)

    def message(self, h_j: Tensor, e: Tensor) -> Tensor:
        return h_j * e


class OtherDtype(Conv):
    def message(self, g_i: Tensor, h_j: Tensor) -> Tensor:
        return h_j * (g_i * h_j).sum(-1, keepdim=True).float()


class FlatRows(Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, h=self.lin(x).view(-1, 2, 4))

    def message(self, h_j: Tensor) -> Tensor:
        return h_j.tanh()

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: Any) -> Tensor:
        return scatter(inputs.view(inputs.size(0), -1), index, 0, dim_size, 'sum')


class Squeezed(Conv):
    """Of a block with one edge, too, whose dimension stays."""

    def message(self, g_i: Tensor, h_j: Tensor, index: Tensor, dim_size: Any) -> Tensor:
        scores = (g_i * h_j).sum(-1, keepdim=True).squeeze()
        return h_j.tanh() * softmax(scores, index, num_nodes=dim_size).view(-1, 1)


class DistanceOverSum(Conv):
    """Infinite is the slope of a root at the distance 0 of two equal nodes."""

    def message(self, h_i: Tensor, h_j: Tensor, g_j: Tensor, index: Tensor, dim_size: Any) -> Any:
        distance = (self.lin(h_i[:, :6]) - self.lin(h_j[:, :6])).pow(2).sum(-1, keepdim=True).sqrt()
        weight = torch.exp(-distance)
        return g_j * weight / scatter(weight, index, 0, dim_size, 'sum')[index]


CONVS = {
    conv.__name__: conv for conv in (*Conv.__subclasses__(), WithoutGradientMean, ReversedView)
}


def sparse_graph(num_edges: int) -> Data:
    """Without loops; of some nodes no edge is an in-edge, of some blocks there is one."""
    data = small_graph()
    different = (data.edge_index[0] != data.edge_index[1]).nonzero().view(-1)
    return data.edge_subgraph(different[:num_edges])


GRAPHS = {f'{count} edges': partial(sparse_graph, count) for count in (200, 40, 9)}


def program(data: Any, wrap: Any, name: str) -> Any:
    torch.manual_seed(0)
    conv, x = wrap(CONVS[name]().double()), data.x.clone().requires_grad_()
    out = conv(x, data.edge_index)
    out.square().mean().backward()
    return [out, x.grad, *(p.grad for p in conv.parameters())]


@pytest.mark.parametrize('graph', GRAPHS)
@pytest.mark.parametrize('name', CONVS)
def test_exact(name: str, graph: str) -> None:
    assert_alike(program, name, graph=GRAPHS[graph], ranks=(1, 3), cut='random')
