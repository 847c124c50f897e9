"""Norms that are called, frozen and placed as scripts do; each kind is in tests/cases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, model_of, supervised, trained, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, Sequential
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


class Normed(Module):
    """Two convs, a norm between them; biases would vanish in most norms."""

    def __init__(self, norm: Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 8, bias=False), GCNConv(8, 3)
        self.norm = norm

    def forward(self, x: Tensor, edge_index: Tensor, *batch: Tensor) -> Tensor:
        x = self.norm(self.conv1(x, edge_index), *batch).relu()
        return self.conv2(x, edge_index)


class Functional(Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)


def functional_batch_norm(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda: Normed(Functional()))


def frozen_batch_norm(data: Data, ddp: Ddp) -> Results:
    """Statistics from passes without gradients; then the norm is in evaluation for good."""
    model = model_of(ddp, lambda: Normed(BatchNorm1d(8)))
    with torch.no_grad():
        for _ in range(2):
            model(data.x, data.edge_index)
    for module in model.modules():
        if isinstance(module, BatchNorm1d):
            module.eval()
            module.weight.requires_grad_(False)
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    return {'losses': losses, 'weights': weights(model)}


def norm_of_masked_rows(data: Data, ddp: Ddp) -> Results:
    """BatchNorm of the training nodes alone."""
    model = model_of(
        ddp, lambda: Sequential(Linear(6, 8, bias=False), BatchNorm1d(8), Linear(8, 3))
    )
    mask = data.train_mask
    losses = descend(lambda: F.cross_entropy(model(data.x[mask]), data.y[mask]), model)
    return {'losses': losses, 'weights': weights(model)}
