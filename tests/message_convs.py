"""Convs of every path that recomputes or gathers messages, on 6 features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_geometric.nn import (
    EdgeConv,
    GATConv,
    GINEConv,
    MessagePassing,
    NNConv,
    SAGEConv,
    TransformerConv,
)

MESSAGES: dict[str, Callable[[], MessagePassing]] = {
    'GINE': lambda: GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
    'EdgeConv': lambda: EdgeConv(torch.nn.Sequential(torch.nn.Linear(12, 50), torch.nn.ReLU())),
    'NN': lambda: NNConv(6, 4, torch.nn.Linear(4, 24)),
    'SAGE-median': lambda: SAGEConv(6, 4, aggr='median'),
    'SAGE-lstm': lambda: SAGEConv(6, 4, aggr='lstm'),
    'Transformer': lambda: TransformerConv(6, 4),
    'GAT': lambda: GATConv(6, 4),
}
