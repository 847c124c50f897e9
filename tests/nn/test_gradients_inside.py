"""What the code of a message sees of gradients, and changes in them, is that of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike, take_step
from torch import Tensor
from torch.autograd import Function
from torch_geometric.nn import MessagePassing


class Clipped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.002, 0.002)


class Unit(Clipped):
    """Of length 1, over all edges."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / grad.norm()


class OfMessages(MessagePassing):
    def __init__(self, function: Any, aggr: str = 'sum') -> None:
        super().__init__(aggr=aggr)
        self.lin, self.function = torch.nn.Linear(6, 3), function
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1, 3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor) -> Tensor:
        return self.function(x_j * self.scale)


class OfEdges(OfMessages):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return self.propagate(edge_index, x=h, weight=self.edge_updater(edge_index, x=h))

    def edge_update(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.function((x_i * x_j * self.scale).sum(-1, keepdim=True))

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        return weight * x_j


def _hooked(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda grad: grad.clamp(-0.002, 0.002))
    return x


CONVS = {
    'clipped': lambda: OfMessages(Clipped.apply),
    'clipped, max': lambda: OfMessages(Clipped.apply, 'max'),
    'of length 1': lambda: OfMessages(Unit.apply),
    'hooked': lambda: OfMessages(_hooked, 'mean'),
    'of edges': lambda: OfEdges(Clipped.apply),
}


def _step(data: Any, wrap: Wrap, name: str) -> list[Any]:
    conv = wrap(CONVS[name]().double())
    return take_step(conv, data, loss=lambda out: F.cross_entropy(out, data.y))


@pytest.mark.parametrize('name', CONVS)
def test_gradients_in_a_message(name: str) -> None:
    assert_alike(_step, name)
