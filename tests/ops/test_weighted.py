"""Convs whose messages have a weight per edge, or per edge and head."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from against_pyg import MODES, compared, paths_of, values
from on_ranks import on_ranks
from pairs import pairs
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphConv, MessagePassing
from torch_geometric.utils import scatter

from pyg_sar import DistributedDataParallel

HEADS, CHANNELS = 2, 5


class Gated(torch.nn.Module):
    """Weights that are computed of edge features, with a gradient or without."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool = False):
        weight = self.gate(edge_attr).tanh()
        return self.run(x, edge_index, weight.detach() if frozen else weight)


class Own(Gated, MessagePassing):
    """A weight per edge and head times rows of x, in the form that is asked for."""

    def __init__(
        self,
        form: str,
        aggr: str = 'sum',
        heads: int = HEADS,
        channels: int = 3,
        flat: bool = False,
    ) -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.form, self.heads, self.channels, self.flat = form, heads, channels, flat
        self.lin = torch.nn.Linear(6, heads * channels)
        self.gate = torch.nn.Linear(4, heads)

    def run(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        x = self.lin(x) if self.flat else self.lin(x).view(-1, self.heads, self.channels)
        out = self.propagate(edge_index, x=x, weight=weight)
        return out.reshape(-1, self.heads * self.channels)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        names = {'x_j': x_j, 'w': weight, 'heads': self.heads, 'channels': self.channels}
        return eval(self.form, names)


LEFT, RIGHT = 'w.view(-1, heads, 1) * x_j', 'x_j * w[:, :, None]'
MATRIX = '(w.unsqueeze(-1) * x_j.view(-1, heads, channels)).view(-1, heads * channels)'


class Stacks(Gated, MessagePassing):
    """Nodes in the last dimension but one, one learnable weight for every edge, of both stacks."""

    def __init__(self) -> None:
        super().__init__(aggr='mean', node_dim=-2)
        self.gate = torch.nn.Linear(4, 1)

    def run(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        return self.propagate(edge_index, x=torch.stack([x, x.sin()]), weight=weight).sum(0)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight * x_j


class InAggregation(Gated, MessagePassing):
    """The aggregation multiplies x_j, of another shape than the message, and goes on with sums."""

    def __init__(self, form: str, reduce: str = 'sum') -> None:
        super().__init__(node_dim=0)
        self.form, self.reduce = form, reduce
        self.lin = torch.nn.Linear(6, HEADS * CHANNELS)
        self.gate = torch.nn.Linear(4, 1 if form == 'matrix' else HEADS)

    def run(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x), weight=weight)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j

    def aggregate(self, inputs: Tensor, index: Tensor, weight: Tensor, dim_size: int) -> Tensor:
        weight = weight.tanh() if self.form == 'computed' else weight
        if self.form == 'matrix':
            rows = inputs * weight
        else:
            rows = weight.unsqueeze(-1) * inputs.view(inputs.size(0), HEADS, CHANNELS)
        sums = scatter(rows, index, 0, dim_size, self.reduce).flatten(1)
        if self.form == 'two reductions':
            sums = sums + scatter(rows, index, 0, dim_size, 'max').flatten(1)
        if self.form == 'and x_j':
            sums = sums + scatter(inputs, index, 0, dim_size, 'sum')
        return sums + self.lin.bias


class Scalar(Gated):
    """Any conv with an edge_weight, here computed; used twice with the same weight."""

    def __init__(self, make: Callable[[], MessagePassing]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([make(), make()])
        self.gate = torch.nn.Linear(4, 1)

    def run(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, weight.squeeze(-1) + 1).tanh()
        return x


CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'heads': lambda: Own(LEFT),
    'heads of 16 channels': lambda: Own(RIGHT, channels=16),
    'one head': lambda: Own(RIGHT, heads=1),
    'three heads, three channels': lambda: Own(LEFT, heads=3),
    'mean': lambda: Own(RIGHT, 'mean'),
    'views of a matrix': lambda: Own(MATRIX, channels=16, flat=True),
    'stacks': Stacks,
    'in aggregation': lambda: InAggregation('heads'),
    'in aggregation, mean': lambda: InAggregation('heads', 'mean'),
    'in aggregation, a matrix': lambda: InAggregation('matrix'),
    'GAT': lambda: GATConv(6, 8, heads=3, edge_dim=4),
    'GAT of one head': lambda: GATConv(6, 3, edge_dim=4, add_self_loops=False),
    'GATv2': lambda: GATv2Conv(6, 8, heads=2, edge_dim=4),
    'GCN': lambda: Scalar(lambda: GCNConv(6, 6)),
    'GraphConv': lambda: Scalar(lambda: GraphConv(6, 6)),
    'GraphConv, mean': lambda: Scalar(lambda: GraphConv(6, 6, aggr='mean')),
}


# Two products; a weight cut off from its gradient; weights along the channels.
FORMS = (
    *('(x_j * w.unsqueeze(-1)) * w.unsqueeze(-1)', 'x_j * w.unsqueeze(-1).detach()'),
    'x_j * w.view(-1, 1, heads)',
)
OTHERS = {form: functools.partial(Own, form, heads=3) for form in FORMS}
# A factor that the aggregation computes; a maximum, too; sums of x_j itself, too.
IN_AGGREGATION = 'computed', 'two reductions', 'and x_j'
OTHERS |= {form: functools.partial(InAggregation, form) for form in IN_AGGREGATION}


def _check(data: Any, name: str, mode: str = 'sequential', **options: bool) -> set[str]:
    """The paths of the messages, whose results are those of plain PyG."""
    torch.manual_seed(5)
    model, _ = compared({**CONVS, **OTHERS}[name]().double(), data, mode, **options)
    return paths_of(model)


@pairs(name=CONVS, world_size=[3, 1], kind=['uneven', 'empty part'], mode=MODES)
@on_ranks(num_parts=6, by='threads')
def test_convs(data, name, world_size, kind, mode):
    assert _check(data, name, mode) == {'SpMM with learned values'}


FROZEN = 'heads', 'one head', 'GCN', 'stacks', 'in aggregation', 'in aggregation, a matrix'


@pairs(name=FROZEN, needs_x=[True, False], mode=MODES)
@on_ranks(by='threads')
def test_weights_without_gradient(data, name, needs_x, mode):
    """Of several heads, or of stacks; one number times the rows of a matrix is linear."""
    paths = _check(data, name, mode, frozen=True, needs_x=needs_x)
    is_linear = name in ('GCN', 'in aggregation, a matrix')
    assert paths == {'SpMM' if is_linear else 'SpMM with learned values'}


@pytest.mark.parametrize('name', ['heads', 'GAT', 'GCN'])
@on_ranks(by='threads')
def test_x_without_gradient(data, name):
    _check(data, name, needs_x=False)


@pytest.mark.parametrize('name', OTHERS)
@on_ranks(by='threads')
def test_other_products_are_replayed(data, name):
    assert _check(data, name) == {'replay'}


class Odd(Own):
    """Its weight has a gradient on rank 0 alone."""

    def run(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        return super().run(x, edge_index, weight.detach() if dist.get_rank() else weight)


@on_ranks(2)
def test_ranks_that_differ_in_the_weights_gradient(data):
    with pytest.raises(ValueError, match=r'same tensors in Odd\.message'):
        values(DistributedDataParallel(Odd(LEFT).double()), data)
