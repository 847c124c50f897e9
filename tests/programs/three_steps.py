"""What most programs do: three steps of training; and what they compare: losses and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch_geometric.data import HeteroData


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
