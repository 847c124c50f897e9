"""Norms of classes that users derive."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike
from copied_modules import WAYS, copied
from torch import Tensor
from torch_geometric.nn import GraphNorm, SAGEConv


class SlowNorm(torch.nn.BatchNorm1d):
    """Other defaults."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=0.01)


class NamedNorm(GraphNorm):
    """More methods."""

    def scale(self) -> Tensor:
        return self.weight


class DoubledNorm(torch.nn.BatchNorm1d):
    """Another forward."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Net(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = SAGEConv(6, 8), norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index))


NORMS = {
    'batch': lambda: SlowNorm(8),
    'graph': lambda: NamedNorm(8),
    'another forward': lambda: DoubledNorm(8),
    'lazy': torch.nn.LazyBatchNorm1d,
}


def _run(data: Any, wrap: Wrap, name: str, way: str) -> list[Tensor]:
    model = wrap(Net(NORMS[name]()).double())
    model = copied(model, way) if way else model
    assert type(model.norm) is type(NORMS[name]()) or name == 'lazy'
    return [
        model.train(is_training)(data.x, data.edge_index).detach() for is_training in (True, False)
    ]


CASES = [*product(NORMS, ['']), *product(['batch', 'graph', 'another forward'], WAYS[:2])]
"""torch itself cannot copy lazy norms."""


@pytest.mark.parametrize(('name', 'way'), CASES)
def test_a_subclass_is_of_all_ranks(name: str, way: str) -> None:
    assert_alike(_run, name, way, tolerance=1e-12)
