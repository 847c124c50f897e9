"""What the programs have in common: small models, three steps of training, and the weights.

Everything here is plain torch and PyG, as in the programs themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch_geometric.data import HeteroData
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


def model_of(ddp: Ddp, make: Callable[[], Module] = Net) -> Module:
    """A model in float64 with the weights of seed 0."""
    torch.manual_seed(0)
    return ddp(make().double())


def supervised(out: Any, data: Any) -> Tensor:
    """The cross-entropy of the training nodes, of papers where nodes have types."""
    store = data
    if isinstance(data, HeteroData):
        out, store = out['paper'] if isinstance(out, dict) else out, data['paper']
    return F.cross_entropy(out[store.train_mask], store.y[store.train_mask])


def trained(
    data: Any,
    ddp: Ddp,
    make: Callable[[], Module] | None = None,
    *more: Any,
    inputs: Sequence[Any] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    lr: float = 0.05,
) -> Results:
    """Three steps of a model, then what it gives in evaluation.

    Args:
        data: The graph.
        ddp: Makes a model parallel, or leaves it as it is.
        make: Makes the model; else a :class:`Net` for the features of the data.
        *more: What the model gets after `x` and `edge_index`.
        inputs: What the model gets, in place of `x`, `edge_index` and `more`.
        loss: Of what the model gives; else :func:`supervised`.
        lr: The rate.
    """
    model = model_of(ddp, make or (lambda: Net(data.num_features)))
    if inputs is None and isinstance(data, HeteroData):
        inputs = data.x_dict, data.edge_index_dict
    given = (data.x, data.edge_index, *more) if inputs is None else inputs
    losses = descend(
        lambda: (loss or (lambda out: supervised(out, data)))(model(*given)), model, lr
    )
    model.eval()
    with torch.no_grad():
        out = model(*given)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


def descend(
    loss_of: Callable[[], Tensor],
    what: Module | Iterable[Tensor] | Optimizer,
    lr: float = 0.1,
    steps: int = 3,
) -> list[float]:
    """Steps of an optimizer, or of plain gradient descent on parameters; the loss before each."""
    if isinstance(what, Optimizer):
        optimizer = what
    else:
        parameters = what.parameters() if isinstance(what, Module) else what
        optimizer = torch.optim.SGD((p for p in parameters if p.requires_grad), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fitted(
    loss_of: Callable[[], Tensor], model: Module, lr: float = 0.1, steps: int = 3
) -> Results:
    """Losses of these steps, and the weights after them."""
    return {'losses': descend(loss_of, model, lr, steps), 'weights': weights(model)}


def inner(model: Module) -> Any:
    """The module inside of a parallel model."""
    return getattr(model, 'module', model)


def weights(model: Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, of the module inside where the model wraps one."""
    return {name: value.detach().clone() for name, value in inner(model).state_dict().items()}
