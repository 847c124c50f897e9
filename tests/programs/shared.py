"""What the programs have in common: a small model, three steps of training, and the weights.

Everything here is plain torch and PyG, as in the programs themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GCNConv

Ddp = Callable[[Module], Module]
Results = dict[str, Any]
Program = TypeVar('Program', bound=Callable[..., Results])


def by_order(program: Program) -> Program:
    """Marks a program whose results depend on the order of nodes or edges by design."""
    program.by_order = True  # type: ignore[attr-defined]
    return program


class Net(Module):
    """Two GCN layers with a ReLU between them."""

    def __init__(self, num_in: int, num_hidden: int, num_out: int) -> None:
        super().__init__()
        self.conv1 = GCNConv(num_in, num_hidden)
        self.conv2 = GCNConv(num_hidden, num_out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def mlp(num_in: int, num_hidden: int, num_out: int) -> torch.nn.Sequential:
    """A hidden layer with tanh."""
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, num_hidden), torch.nn.Tanh(), torch.nn.Linear(num_hidden, num_out)
    )


def descend(
    loss_of: Callable[[], Tensor],
    parameters: Module | Iterable[Tensor],
    lr: float = 0.1,
    steps: int = 3,
) -> list[float]:
    """Steps of plain gradient descent; the loss before each."""
    if isinstance(parameters, Module):
        parameters = parameters.parameters()
    optimizer = torch.optim.SGD(parameters, lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model: Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, of the module inside where the model wraps one."""
    inner = getattr(model, 'module', model)
    return {name: value.detach().clone() for name, value in inner.state_dict().items()}
