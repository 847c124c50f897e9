"""Neighbours summed by hand and by matrices: edge_index, scatter, sparse and dense, no conv."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Program, Results, descend, mlp, model_of, supervised, trained
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.utils import (
    degree,
    scatter,
    softmax,
)

Sum = Callable[[Tensor, Tensor, Data], Tensor]


def by_scatter(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    """Of PyG, into destinations and into sources."""
    src, dst = edge_index
    into = [
        scatter(x[src], dst, dim=0, dim_size=x.size(0), reduce=reduce)
        for reduce in ('sum', 'mean', 'max', 'min')
    ]
    out_of = [
        scatter(x[dst], src, dim=0, dim_size=x.size(0), reduce=reduce)
        for reduce in ('sum', 'min', 'max')
    ]
    return sum([*into, *out_of])


def attention_by_hand(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    src, dst = edge_index
    logits = F.leaky_relu((x[src] + x[dst]).sum(-1, keepdim=True), 0.2)
    alpha = softmax(logits, dst, num_nodes=x.size(0))
    return scatter(alpha * x[src], dst, dim=0, dim_size=x.size(0), reduce='sum')


def softmax_by_hand(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    """exp, divided by its sum at the destination, with the maximum over all edges taken off."""
    src, dst = edge_index
    logits = (torch.tanh(x)[src] * x[dst]).sum(-1)
    e = torch.exp(logits - logits.max())
    total = torch.zeros(x.size(0), dtype=x.dtype).index_add_(0, dst, e)
    alpha = e / (total[dst] + 1e-16)
    return torch.zeros_like(x).index_add_(0, dst, alpha.unsqueeze(-1) * x[src])


def appnp_by_hand(x: Tensor, edge_index: Tensor, data: Data) -> Tensor:
    row, col = edge_index
    deg = degree(col, x.size(0), x.dtype).clamp(min=1)
    weight = (deg[row] * deg[col]).rsqrt().view(-1, 1)
    h = z = x.tanh()
    for _ in range(4):
        z = 0.9 * torch.zeros_like(z).index_add(0, col, weight * z[row]) + 0.1 * h
    return z


SUMS: dict[str, Sum] = {
    'scatter_of_pyg': by_scatter,
    'attention_by_hand': attention_by_hand,
    'softmax_by_hand': softmax_by_hand,
    'appnp_by_hand': appnp_by_hand,
}


class Summed(Module):
    """A layer, what is summed of it, another layer."""

    def __init__(self, data: Data, summed: Sum) -> None:
        super().__init__()
        self.first, self.last, self.summed = Linear(6, 8), Linear(8, 3), summed
        self.data = [data]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.summed(self.first(x), edge_index, self.data[0]))


PROGRAMS: dict[str, Program] = {
    name: lambda data, ddp, summed=summed: trained(data, ddp, lambda: Summed(data, summed))
    for name, summed in SUMS.items()
}


def correct_and_smooth_by_hand(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, lambda: mlp(6, 8, 3))
    mask = data.train_mask
    losses = descend(lambda: supervised(model(data.x), data), model)
    row, col = data.edge_index
    weight = 1 / degree(col, data.num_nodes).double().clamp(min=1)[col].unsqueeze(1)
    with torch.no_grad():
        soft = model(data.x).softmax(-1)
        error = torch.zeros_like(soft)
        error[mask] = F.one_hot(data.y[mask], 3).double() - soft[mask]
        sigma = error[mask].abs().sum() / mask.sum()
        for _ in range(3):
            spread = torch.zeros_like(error).index_add(0, col, weight * error[row])
            error = (0.7 * spread + 0.3 * error).clamp_(-1, 1)
        scale = sigma / error.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        soft = soft + scale * error
        soft[mask] = F.one_hot(data.y[mask], 3).double()
    return {'losses': losses, 'soft': soft, 'sigma': sigma}
