"""Models that the tests of the planner plan for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, MessagePassing, SAGEConv

import pyg_sar
from pyg_sar.planner.rehearsal import Job


class UserModel(torch.nn.Module):
    """Two convs of a user's choice, batch norm, dropout and a skip connection."""

    def __init__(self, first: MessagePassing, second: MessagePassing, width: int) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.norm = torch.nn.BatchNorm1d(width)
        self.skip = torch.nn.Linear(6, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.first(x, edge_index)).relu() + self.skip(x)
        return self.second(torch.dropout(h, 0.5, self.training), edge_index)


USER_MODELS = {
    'gat': lambda: UserModel(GATConv(6, 4, heads=2), GATConv(8, 3, heads=2, concat=False), 8),
    'gcn': lambda: UserModel(GCNConv(6, 8), GCNConv(8, 3), 8),
    'median': lambda: UserModel(SAGEConv(6, 8, aggr='median'), SAGEConv(8, 3), 8),
    'turned': lambda: UserModel(SAGEConv(6, 8, flow='target_to_source'), GCNConv(8, 3), 8),
}


def job_of(model: torch.nn.Module, width: int, **options: Any) -> Job:
    return Job(
        model, width, **{'optimizer': functools.partial(torch.optim.SGD, lr=0.01), **options}
    )


def cut_small_graph(folder: Path) -> Path:
    """A partition folder of 4 parts."""
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(600, 6, generator=generator),
        y=torch.randint(3, (600,), generator=generator),
        train_mask=torch.ones(600, dtype=torch.bool),
        edge_index=torch.randint(600, (2, 4000), generator=generator),
        edge_weight=torch.rand(4000, generator=generator),
        num_classes=3,
    )
    pyg_sar.partition_graph(data, 4, folder, seed=0)
    return folder
