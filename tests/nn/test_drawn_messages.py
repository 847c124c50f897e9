"""Messages that draw random numbers: how they are judged, and that ranks' generators stay alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, take_step
from on_ranks import on_ranks
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, MessagePassing, TransformerConv
from torch_geometric.utils import dropout_edge

import pyg_sar


class _Drawing(SumConv):
    """A message that a program may say."""

    def __init__(self, say: Callable[[Tensor], Tensor], aggr: str = 'add') -> None:
        super().__init__(aggr=aggr)
        self.say = say

    def message(self, x_j: Tensor) -> Tensor:
        return self.say(x_j)


def _noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


CONVS: dict[str, Callable[[int], MessagePassing]] = {
    'attention': lambda width: GATConv(width, 4, heads=2, dropout=0.5),
    'transformer': lambda width: TransformerConv(width, 4, dropout=0.5),
    'sum': lambda width: _Drawing(_noisy),
    'median': lambda width: _Drawing(_noisy, 'median'),
}


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', CONVS)
@on_ranks(3, by='threads')
def test_later_draws_are_those_of_the_whole_graph(data: Data, name: str, mode: Any) -> None:
    torch.manual_seed(4)
    model = pyg_sar.DistributedDataParallel(CONVS[name](data.num_features).double(), mode=mode)
    x = torch.ones_like(data.x).requires_grad_()
    for _ in range(2):
        out = model(x, dropout_edge(data.edge_index, 0.1)[0])  # what differs is refused
        F.dropout(out, 0.5).square().mean().backward()
    drawn = [pyg_sar.gather(torch.zeros_like(data.y) + torch.randint(10**6, ())) for _ in range(2)]
    assert all(each.unique().numel() == 1 for each in drawn)


@on_ranks(3, by='threads')
def test_every_rank_draws_other_numbers(data: Data) -> None:
    """Also in the first chunk of a block, from equal states."""
    torch.manual_seed(4)
    conv = pyg_sar.DistributedDataParallel(_Drawing(_noisy))
    drawn = pyg_sar.gather(conv(torch.zeros_like(data.x), data.edge_index)).flatten()
    drawn = drawn[drawn != 0]  # a node without edges draws nothing
    assert drawn.unique().numel() == drawn.numel() > 0


def _column(x: Tensor) -> Tensor:
    return torch.rand(x.size(0), 1, dtype=x.dtype)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def _gumbel(x: Tensor) -> Tensor:
    return -torch.log(-torch.log(torch.rand_like(x)))


def _kept(x: Tensor, p: float) -> Tensor:
    mask = (_column(x) < p).to(x.dtype)
    return x * mask / mask.mean()


# Of all edges. What they draw has no effect, or is one number, so that plain PyG gives the same.
ACROSS: dict[str, Callable[[Tensor], Tensor]] = {
    'mean of dropped': lambda x: _centred(F.dropout(x, 0.0)),
    'mean of drawn': lambda x: _centred(x * (_column(x) >= 0)),
    'softmax of drawn': lambda x: x * torch.softmax(x[:, :1] * (_column(x) < 2), 0),
    'noise by deviations': lambda x: x + x.std(0) * (torch.randn_like(x).abs() >= 0),
    'no edge is dropped': lambda x: _kept(x, 2.0),
    'bernoulli of a mean': lambda x: x + 0 * torch.bernoulli(_centred(x).sigmoid()),
    'one number': lambda x: x * torch.rand(1, dtype=x.dtype),
    'number without dimension': lambda x: x * torch.rand((), dtype=x.dtype),
    'number by column': lambda x: x + torch.randn(x.size(1), dtype=x.dtype),
    'order': lambda x: x + 0 * x[torch.randperm(x.size(0))],
    'one more than edges': lambda x: x * (torch.rand(x.size(0) + 1, 1)[1:] >= 0),
}

# Also of all edges, and truly random: any sum of messages is that of ones.
RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    'noise without its mean': lambda x: x + _centred(_gumbel(x)),
    'few edges are kept': lambda x: _kept(x, 0.1),
    'half of the edges are kept': lambda x: _kept(x, 0.5),
    'most edges are kept': lambda x: _kept(x, 0.9),
    'softmax': lambda x: x.size(0) * torch.softmax(_gumbel(x), 0),
}

# Of single edges.
BY_EDGE: dict[str, Callable[[Tensor], Tensor]] = {
    'dropout': lambda x: F.dropout(x, 0.5),
    'column': lambda x: x * _column(x),
    'normal': lambda x: torch.normal(x, x.abs()),
    'gumbel softmax': lambda x: F.gumbel_softmax(x, dim=-1),
    'in place': lambda x: x * torch.empty_like(x).exponential_(),
    'flat': lambda x: x * torch.rand(x.numel(), dtype=x.dtype).view(x.shape),
    'choice': lambda x: x.gather(1, torch.multinomial(x.sigmoid(), 2)),
}


@pytest.mark.parametrize('aggr', ['add', 'max'])
@pytest.mark.parametrize('name', ACROSS)
@as_one_process(ranks=(1, 3))
def test_draws_of_all_edges(data: Data, wrap: Wrap, name: str, aggr: str) -> list[Any]:
    model = wrap(_Drawing(ACROSS[name], aggr))
    torch.manual_seed(8)
    return take_step(model, data)


@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(by='threads')
def test_random_messages_of_all_edges(data: Data, world_size: int) -> None:
    """Their sum over all edges is no matter of chance."""
    for name, say in RANDOM.items():
        model = pyg_sar.DistributedDataParallel(_Drawing(say, 'add'))
        total = model(torch.ones_like(data.x), data.edge_index).sum(0)
        want = torch.full_like(total, data.num_edges)
        torch.testing.assert_close(pyg_sar.gather(total), want, msg=name)


@pytest.mark.parametrize('aggr', ['add', 'median'])
@on_ranks(3, by='threads')
def test_draws_of_single_edges(data: Data, aggr: str) -> None:
    """They keep the path that such a message has without draws; in evaluation, too."""
    for name, say in BY_EDGE.items():
        model = pyg_sar.DistributedDataParallel(_Drawing(say, aggr))
        for is_training in (True, False):
            model.train(is_training)(data.x, data.edge_index)
            assert 'one_shot' not in model.chosen_paths(), name
