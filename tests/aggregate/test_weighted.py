"""Convs whose messages have a weight per edge, or per edge and head."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from few import few
from ranks import run_as_threads, run_ranks
from small_graphs import ASSIGNMENTS, assert_close, cut, small_graph
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphConv, MessagePassing

import pyg_sar
from pyg_sar import SARConv, wrap
from pyg_sar.comm import all_reduce_sum, is_distributed

MODES = ('sequential', 'sequential_no_remat', 'one_shot')


HEADS, CHANNELS = 2, 5


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], str]:
    root = tmp_path_factory.mktemp('weighted')
    return {
        (n, kind): str(cut(small_graph(), n, root / f'{n} {kind}', kind))
        for n in (1, 2, 3, 4)
        for kind in ASSIGNMENTS
        if n > 1 or kind == 'uneven'
    }


class Own(MessagePassing):
    """A weight per edge and head times what `rows` makes of x."""

    def __init__(self, form: str, aggr: str = 'sum', heads: int = HEADS, channels: int = 3) -> None:
        super().__init__(aggr=aggr, node_dim=0)
        self.form, self.heads, self.channels = form, heads, channels
        self.lin = torch.nn.Linear(6, heads * channels)
        self.gate = torch.nn.Linear(4, heads)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        weight = self.gate(edge_attr).tanh()
        weight = weight.detach() if frozen else weight
        x = self.lin(x)
        if self.form != 'matrix':
            x = x.view(-1, self.heads, self.channels)
        out = self.propagate(edge_index, x=x, weight=weight)
        return out.reshape(-1, self.heads * self.channels)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        if self.form == 'matrix':
            rows = x_j.view(-1, self.heads, self.channels)
            return (weight.unsqueeze(-1) * rows).view(-1, self.heads * self.channels)
        if self.form == 'right':
            return x_j * weight[:, :, None]
        if self.form == 'twice':
            return (x_j * weight.unsqueeze(-1)) * weight.unsqueeze(-1)
        if self.form == 'detached':
            return x_j * weight.unsqueeze(-1).detach()
        if self.form == 'across':
            return x_j * weight.view(-1, 1, self.heads)
        return weight.view(-1, self.heads, 1) * x_j


class Stacks(MessagePassing):
    """Nodes in the last dimension but one, one learnable weight for every edge, of both stacks."""

    def __init__(self) -> None:
        super().__init__(aggr='mean', node_dim=-2)
        self.gate = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        weight = self.gate(edge_attr).tanh()
        weight = weight.detach() if frozen else weight
        return self.propagate(edge_index, x=torch.stack([x, x.sin()]), weight=weight).sum(0)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight * x_j


class Attention(torch.nn.Module):
    """Any attention conv, without the frozen weights of the others."""

    def __init__(self, conv: MessagePassing) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        return self.conv(x, edge_index, edge_attr)


class Scalar(torch.nn.Module):
    """Any conv with an edge_weight, here computed; used twice with the same weight."""

    def __init__(self, make: Callable[[], MessagePassing]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([make(), make()])
        self.gate = torch.nn.Linear(4, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, frozen: bool) -> Tensor:
        weight = self.gate(edge_attr).sigmoid().squeeze(-1)
        weight = weight.detach() if frozen else weight
        for conv in self.convs:
            x = conv(x, edge_index, weight).tanh()
        return x


CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'heads': lambda: Own('left'),
    'heads of 16 channels': lambda: Own('right', channels=16),
    'one head': lambda: Own('right', heads=1),
    'three heads, three channels': lambda: Own('left', heads=3),
    'mean': lambda: Own('right', 'mean'),
    'views of a matrix': lambda: Own('matrix', channels=16),
    'stacks': Stacks,
    'GAT': lambda: Attention(GATConv(6, 8, heads=3, edge_dim=4)),
    'GAT of one head': lambda: Attention(GATConv(6, 3, edge_dim=4, add_self_loops=False)),
    'GATv2': lambda: Attention(GATv2Conv(6, 8, heads=2, edge_dim=4)),
    'GCN': lambda: Scalar(lambda: GCNConv(6, 6)),
    'GraphConv': lambda: Scalar(lambda: GraphConv(6, 6)),
    'GraphConv, mean': lambda: Scalar(lambda: GraphConv(6, 6, aggr='mean')),
}


OTHERS = {form: functools.partial(Own, form, heads=3) for form in ('twice', 'detached', 'across')}


def _module(name: str, dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(5)
    return {**CONVS, **OTHERS}[name]().to(dtype)


def _layer(
    name: str, data: Any, module: torch.nn.Module, dtype: torch.dtype, frozen: bool, needs_x: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    x = data.x.detach().to(dtype).requires_grad_(needs_x)
    edge_attr = data.edge_attr.detach().to(dtype).requires_grad_()
    out = module(x, data.edge_index, edge_attr, frozen)
    return out, {'x': x, 'edge_attr': edge_attr}


def _conv_parity(
    name: str, root: str, mode: str, dtype: torch.dtype, frozen: bool, needs_x: bool
) -> list[str]:
    """Compares output and all gradients with plain PyG; returns the paths of propagate."""
    graph, data = small_graph(), pyg_sar.local(pyg_sar.load_shard(root))
    plain = _module(name, dtype)
    want, inputs = _layer(name, graph, plain, dtype, frozen, needs_x)
    torch.manual_seed(6)
    grad = torch.randn_like(want)
    want.backward(grad)
    wrapped = wrap(_module(name, dtype), mode=mode)
    out, own = _layer(name, data, wrapped, dtype, frozen, needs_x)
    out.backward(grad[data.n_id])
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}[dtype]
    assert_close(out.detach(), want.detach()[data.n_id], tolerance=tolerance)
    for key, ids in (('x', data.n_id), ('edge_attr', data.e_id)):
        assert_close(_grad(own[key]), _grad(inputs[key])[ids], tolerance=tolerance)
    for a, b in zip(wrapped.parameters(), plain.parameters(), strict=True):
        share = _grad(a).clone()
        if is_distributed():
            all_reduce_sum(share)
        assert_close(share, _grad(b), tolerance=tolerance)
    return _paths(wrapped)


def _paths(model: torch.nn.Module) -> list[str]:
    convs = [module for module in model.modules() if isinstance(module, SARConv)]
    plans = [each for conv in convs for each in conv._sar.call_plans()]
    return [each.path for each in plans if each.function.endswith('.message')]


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


@pytest.mark.parametrize('mode', few(MODES))
@pytest.mark.parametrize('kind', ['uneven', pytest.param('empty part', marks=pytest.mark.slow)])
@pytest.mark.parametrize('world_size', [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize('name', CONVS)
def test_convs(parts, name, world_size, kind, mode):
    root = parts[3 if world_size == 1 else world_size, kind]
    for paths in run_as_threads(
        _conv_parity, world_size, name, root, mode, torch.float64, False, True
    ):
        assert set(paths) == {'weighted'}


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
    ('name', 'needs_x'),
    [
        *((n, needs) for n in ('heads', 'one head', 'GCN') for needs in (True, False)),
        ('stacks', True),
    ],
)
def test_weights_without_gradient(parts, name, needs_x, mode):
    """Of several heads, or of stacks; one number times the rows of a matrix is linear."""
    args = (name, parts[3, 'uneven'], mode, torch.float64, True, needs_x)
    for paths in run_as_threads(_conv_parity, 3, *args):
        assert set(paths) == {'linear' if name == 'GCN' else 'weighted'}


@pytest.mark.parametrize('name', ['heads', 'GAT', 'GCN'])
def test_x_without_gradient(parts, name):
    run_as_threads(
        _conv_parity, 3, name, parts[3, 'uneven'], 'sequential', torch.float64, False, False
    )


@pytest.mark.parametrize('name', OTHERS)
def test_other_products_are_replayed(parts, name):
    """Two products; a weight cut off from its gradient; weights along the channels."""
    args = (name, parts[3, 'uneven'], 'sequential', torch.float64, False, True)
    for paths in run_as_threads(_conv_parity, 3, *args):
        assert paths == ['replay']


def _needs_differ(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    module = wrap(_module('heads', torch.float64))
    frozen = dist.get_rank() == 1
    try:
        _layer('heads', data, module, torch.float64, frozen, True)
    except ValueError as error:
        return str(error)
    return ''


def test_ranks_that_differ_in_the_weights_gradient(parts):
    for message in run_ranks(_needs_differ, 2, parts[2, 'uneven']):
        assert 'path of Own.message' in message
