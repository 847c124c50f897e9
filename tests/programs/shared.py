"""What the programs have in common: small models, and how they become programs by name.

Everything here is plain torch and PyG, as in the programs themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GCNConv

Ddp = Callable[[Module], Module]
Results = dict[str, Any]
Program = Callable[[Any, Ddp], Results]


class Net(Module):
    """Two GCN layers with a ReLU between them."""

    def __init__(self, num_in: int = 6, num_hidden: int = 8, num_out: int = 3) -> None:
        super().__init__()
        self.conv1 = GCNConv(num_in, num_hidden)
        self.conv2 = GCNConv(num_hidden, num_out)

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.conv2(self.conv1(x, edge_index, weight).relu(), edge_index, weight)


class Made(Module):
    """Parts by name; its forward is a function of the module and of what it is called with."""

    def __init__(self, call: Callable[..., Any], made: dict[str, Any]) -> None:
        super().__init__()
        self.call = call
        for name, part in made.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.call(self, *args)


def parts(**given: Any) -> Callable[[Callable[..., Any]], Callable[[], Module]]:
    """Makes of a forward what makes its module, whose parts are made anew for each.

    A part is given as what makes it, or as a class and its arguments: ``(Linear, 6, 8)``.
    """

    def of(call: Callable[..., Any]) -> Callable[[], Module]:
        def make() -> Module:
            each = {name: p if isinstance(p, tuple) else (p,) for name, p in given.items()}
            return Made(call, {name: p[0](*p[1:]) for name, p in each.items()})

        make.__name__ = call.__name__
        return make

    return of


def named(*functions: Callable[..., Any]) -> dict[str, Any]:
    """Functions by their names."""
    return {function.__name__: function for function in functions}


def programs(run: Callable[..., Results], given: dict[str, Any]) -> dict[str, Program]:
    """A program for each of what is given: `run` gets it after data and what makes parallel."""
    return {name: lambda data, ddp, it=it: run(data, ddp, it) for name, it in given.items()}


def mlp(num_in: int, num_hidden: int, num_out: int) -> torch.nn.Sequential:
    """A hidden layer with tanh."""
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, num_hidden), torch.nn.Tanh(), torch.nn.Linear(num_hidden, num_out)
    )
