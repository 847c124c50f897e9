"""Models with every norm between convs, inside of a conv, and in one of PyG's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conv_case import Case
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.nn import GINConv, SAGEConv
from torch_geometric.nn.models import GIN

NORMS: dict[str, Callable[[], torch.nn.Module]] = {
    'BatchNorm1d': lambda: torch.nn.BatchNorm1d(8),
    'BatchNorm': lambda: pyg.BatchNorm(8, allow_single_element=True),
    'HeteroBatchNorm': lambda: pyg.HeteroBatchNorm(8, 3),
    'InstanceNorm': lambda: pyg.InstanceNorm(8, affine=True, track_running_stats=True),
    'LayerNorm': lambda: pyg.LayerNorm(8),
    'HeteroLayerNorm': lambda: pyg.HeteroLayerNorm(8, 3),
    'GraphNorm': lambda: pyg.GraphNorm(8),
    'GraphSizeNorm': pyg.GraphSizeNorm,
    'PairNorm': pyg.PairNorm,
    'MessageNorm': lambda: pyg.MessageNorm(learn_scale=True),
    'DiffGroupNorm': lambda: pyg.DiffGroupNorm(8, 2, lamda=0.5),
    'MeanSubtractionNorm': pyg.MeanSubtractionNorm,
}
GIVEN = {'HeteroBatchNorm': 'y', 'HeteroLayerNorm': 'y', 'MessageNorm': 'x'}
OF_GRAPHS = ('InstanceNorm', 'LayerNorm', 'GraphNorm', 'GraphSizeNorm', 'PairNorm')


class Net(torch.nn.Module):
    """A norm between two convs and, if it takes nothing else, one inside the second."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.norm, self.given = SAGEConv(8, 8), NORMS[name](), GIVEN.get(name)
        inner = torch.nn.Identity() if self.given else NORMS[name]()
        self.second = GINConv(torch.nn.Sequential(torch.nn.Linear(8, 8), inner, torch.nn.Tanh()))

    def forward(self, data: Any) -> Tensor:
        x = self.first(data.x, data.edge_index).tanh()
        x = self.norm(x, getattr(data, self.given)) if self.given else self.norm(x)
        return self.second(x, data.edge_index)


class WithGraphs(torch.nn.Module):
    """One of PyG's models, given a batch vector."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = GIN(8, 8, 2, norm=NORMS[name]())

    def forward(self, data: Any) -> Tensor:
        return self.model(data.x, data.edge_index, batch=data.y, batch_size=4)


def _call(model: torch.nn.Module, data: Any) -> Tensor:
    return model(data)


CASES = {
    **{f'norm: {n}': Case('norm', n, lambda name=n: Net(name), _call) for n in NORMS},
    **{
        f'norm: {n} of graphs': Case(
            'norm', f'{n} of graphs', lambda name=n: WithGraphs(name), _call
        )
        for n in OF_GRAPHS
    },
}
