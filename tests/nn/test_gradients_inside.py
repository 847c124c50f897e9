"""What the code of a message sees of gradients, and changes in them, is that of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import run_as_threads
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch.autograd import Function
from torch_geometric.nn import MessagePassing

import pyg_sar


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


class Changing(MessagePassing):
    def __init__(self, function: Any, aggr: str = 'sum') -> None:
        super().__init__(aggr=aggr)
        self.lin, self.function = torch.nn.Linear(6, 3), function
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1, 3))


class OfMessages(Changing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor) -> Tensor:
        return self.function(x_j * self.scale)


class OfEdges(Changing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return self.propagate(edge_index, x=h, weight=self.edge_updater(edge_index, x=h))

    def edge_update(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.function((x_i * x_j * self.scale).sum(-1, keepdim=True))

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
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


def _gradients(name: str, data: Any, wrap: Any) -> list[Tensor]:
    torch.manual_seed(0)
    conv, x = wrap(CONVS[name]().double()), data.x.detach().clone().requires_grad_()
    F.cross_entropy(conv(x, data.edge_index), data.y).backward()
    return [pyg_sar.gather(x.grad), *(p.grad for p in conv.parameters())]


def _of_rank(name: str, root: str) -> list[Tensor]:
    return _gradients(name, pyg_sar.load_shard(root), pyg_sar.DistributedDataParallel)


@pytest.mark.parametrize('name', CONVS)
def test_gradients_in_a_message(tmp_path: Path, name: str) -> None:
    want = _gradients(name, small_graph(), lambda conv: conv)
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    for found in run_as_threads(_of_rank, 3, name, root):
        for a, b in zip(found, want, strict=True):
            assert_close(a, b, tolerance=1e-10)
