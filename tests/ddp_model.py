"""The model of the tests of DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GATConv, SAGEConv


class Net(torch.nn.Module):
    """Convs, a norm, a linear layer that is no part of message passing, and one never used."""

    def __init__(self, *, has_unused: bool = False) -> None:
        super().__init__()
        self.first = SAGEConv(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = GATConv(8, 4, heads=2)
        self.head = torch.nn.Linear(8, 3)
        if has_unused:
            self.unused = torch.nn.Linear(2, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.first(x, edge_index)).relu()
        return self.head(self.second(h, edge_index).tanh())


def make_model(seed: int = 0, **kwargs: Any) -> torch.nn.Module:
    torch.manual_seed(seed)
    return Net(**kwargs).double()
