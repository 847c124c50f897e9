"""What training scripts do around a model: compile, complex numbers, generators, other weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from shared import (
    Ddp,
    Net,
    Program,
    Results,
    descend,
    inner,
    model_of,
    supervised,
    trained,
    weights,
)
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


def a_generator_in_forward(data: Data, ddp: Ddp) -> Results:
    generator = torch.Generator().manual_seed(7)

    class Noisy(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = x + torch.rand(x.size(0), 1, generator=generator, dtype=x.dtype)
            keep = torch.bernoulli(torch.full(x.shape, 0.5, dtype=x.dtype), generator=generator)
            x = (x * keep / 0.5)[torch.randperm(x.size(0), generator=generator)]
            return super().forward(x, edge_index)

    return trained(data, ddp, Noisy) | {'state': generator.get_state()}


def of_complex_numbers(data: Data, ddp: Ddp, conv: Module) -> Results:
    model, x = ddp(conv), torch.complex(data.x, data.x.flip(1)).requires_grad_()
    free = torch.randn(4, dtype=torch.cdouble, requires_grad=True)
    out = model(x, data.edge_index) * free
    (out.abs().square().mean() + (out.mean(0) * out[3]).sum().abs()).backward()
    grads = {name: p.grad for name, p in inner(model).named_parameters()}
    parts = {name: torch.view_as_real(grad) for name, grad in grads.items()}
    return parts | {name: torch.view_as_real(t.grad.resolve_conj()) for name, t in [('f', free)]}


PROGRAMS: dict[str, Program] = {
    'complex_conv': lambda data, ddp: of_complex_numbers(
        data, ddp, GCNConv(6, 4).to(torch.cdouble)
    ),
}


def compiled(data: Data, ddp: Ddp) -> Results:
    """Around the parallel model, and inside of it."""
    first = torch.compile(model_of(ddp), backend='eager')
    losses = descend(lambda: supervised(first(data.x, data.edge_index), data), first)
    torch.manual_seed(0)
    second = ddp(torch.compile(Net().double(), backend='eager'))
    losses += descend(lambda: supervised(second(data.x, data.edge_index), data), second)
    return {'losses': losses, 'weights': [list(weights(m).values()) for m in (first, second)]}


def fast_weights_of_the_first_order(data: Data, ddp: Ddp) -> Results:
    model: Any = model_of(ddp)
    fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(2):
        out = functional_call(model, fast, (data.x, data.edge_index))
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        grads = torch.autograd.grad(loss, list(fast.values()), allow_unused=True)
        fast = {
            name: (w if g is None else w - 0.1 * g).detach().requires_grad_()
            for (name, w), g in zip(fast.items(), grads, strict=True)
        }
    return {'fast': list(fast.values()), 'weights': weights(model)}
