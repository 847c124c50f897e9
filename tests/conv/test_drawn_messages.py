"""Messages that draw random numbers leave the generators of all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_ranks import on_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, MessagePassing, TransformerConv
from torch_geometric.utils import dropout_edge

import pyg_sar


class _Noisy(MessagePassing):
    """Messages with noise, whose aggregation a program may say."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j + torch.randn_like(x_j)


CONVS: dict[str, Callable[[int], MessagePassing]] = {
    'attention': lambda width: GATConv(width, 4, heads=2, dropout=0.5),
    'transformer': lambda width: TransformerConv(width, 4, dropout=0.5),
    'sum': lambda width: _Noisy(),
    'median': lambda width: _Noisy(aggr='median'),
}


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', CONVS)
@on_ranks(3)
def test_later_draws_are_those_of_the_whole_graph(data: Data, name: str, mode: Any) -> None:
    torch.manual_seed(4)
    model = pyg_sar.DistributedDataParallel(CONVS[name](data.num_features).double(), mode=mode)
    x = torch.ones_like(data.x).requires_grad_()
    for _ in range(2):
        out = model(x, dropout_edge(data.edge_index, 0.1)[0])  # what differs is refused
        F.dropout(out, 0.5).square().mean().backward()
    drawn = [pyg_sar.gather(torch.zeros_like(data.y) + torch.randint(10**6, ())) for _ in range(2)]
    assert all(each.unique().numel() == 1 for each in drawn)


@on_ranks(3)
def test_every_rank_draws_other_numbers(data: Data) -> None:
    """Also in the first chunk of a block, from equal states."""
    torch.manual_seed(4)
    out = pyg_sar.DistributedDataParallel(_Noisy())(torch.zeros_like(data.x), data.edge_index)
    drawn = pyg_sar.gather(out).flatten()
    drawn = drawn[drawn != 0]  # a node without edges draws nothing
    assert drawn.unique().numel() == drawn.numel() > 0
