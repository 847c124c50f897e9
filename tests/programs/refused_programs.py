"""What is refused, by an error that says why: second derivatives, statistics of all edges."""

from __future__ import annotations

import step_programs
import torch
import torch.nn.functional as F
import transformer_programs
from shared import Ddp, Net, Results
from three_steps import descend, model_of, supervised, trained
from torch import Tensor
from torch.func import functional_call
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

PROGRAMS = transformer_programs.REFUSED | step_programs.REFUSED


def gradient_penalty_of_a_gnn(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, Net)

    def loss_of() -> Tensor:
        x = data.x.detach().clone().requires_grad_(True)
        loss = supervised(model(x, data.edge_index), data)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + 10 * grad.pow(2).sum()

    return {'losses': descend(loss_of, model)}


def least_over_edges_turned_round(data: Data, ddp: Ddp) -> Results:
    """A message that looks at all edges, which run the other way."""

    class LeastConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', flow='target_to_source')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j: Tensor) -> Tensor:
            return x_j - x_j.min()

    return trained(data, ddp, LeastConv)


def fast_weights(data: Data, ddp: Ddp) -> Results:
    """An inner step by autograd.grad, and the outer one through it."""
    model = model_of(ddp, lambda: Linear(6, 3))
    named = dict(model.named_parameters())
    inner = supervised(functional_call(model, named, (data.x,)), data)
    grads = torch.autograd.grad(inner, list(named.values()), create_graph=True)
    fast = {name: w - 0.1 * g for (name, w), g in zip(named.items(), grads, strict=True)}
    F.cross_entropy(functional_call(model, fast, (data.x,)), data.y).backward()
    return {'grads': [p.grad for p in model.parameters()]}
