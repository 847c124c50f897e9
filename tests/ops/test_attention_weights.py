"""Weights of attention by their own loops: those of PyG, with every gradient."""

from __future__ import annotations

import copy
from importlib import import_module
from operator import iadd
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from against_pyg import compared, values
from expressions import expressions
from on_ranks import on_ranks, parts_of
from pairs import pairs
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.nn import programs
from pyg_sar.ops import weighted_loops
from pyg_sar.utils.installed import loops

pytestmark = pytest.mark.skipif(loops() is None, reason='no compiled loops')


def leaky(scores: Tensor, slope: float = 0.2) -> Tensor:
    return F.leaky_relu(scores, slope)


class Scored(MessagePassing):
    """Attention of a user: scores of both ends, in one function or in two."""

    def __init__(self, weigh: str, in_message: bool = False) -> None:
        super().__init__(aggr='add', node_dim=0)
        self.weigh, self.in_message, self.slope = weigh, in_message, 0.2
        self.lin = torch.nn.Linear(6, 12, dtype=torch.float64)
        self.ends = torch.nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        alpha, rows = self.ends(x).split(3, dim=1), self.lin(x).view(-1, 3, 4)
        w = None if self.in_message else self.edge_updater(edge_index, alpha=alpha)
        return self.propagate(edge_index, x=rows, alpha=alpha, w=w).flatten(1)

    def edge_update(self, alpha_j: Tensor, alpha_i: Tensor, index: Tensor) -> Tensor:
        names = {'self': self, 'a': alpha_j, 'b': alpha_i, 'index': index, 'iadd': iadd}
        return eval(self.weigh, globals(), names)

    def message(
        self, x_j: Tensor, alpha_j: Tensor, alpha_i: Tensor, w: Any, index: Tensor
    ) -> Tensor:
        w = self.edge_update(alpha_j, alpha_i, index) if w is None else w
        return w.unsqueeze(-1) * x_j


PLAIN = 'softmax(leaky(a + b, self.slope), index)'
LOOPED = f"""
{PLAIN}; softmax(torch.nn.LeakyReLU(self.slope)(torch.add(b, a)), index)
F.dropout(softmax(leaky(a + b), index), 0.0, self.training)
"""
OTHERS = """
softmax(iadd(leaky(a + b), 0.5 * a.sin()), index); softmax(leaky((a + b).mul_(2)), index)
softmax(leaky(a + b), index).mul(2); softmax(leaky(torch.add(a, b, alpha=3)), index)
softmax(leaky(a + a), index) + 0 * b; softmax(leaky(a + b), index).detach()
softmax(leaky(a.detach() + b), index)
"""


def _on_rank(root: Path, module: torch.nn.Module, mode: str) -> None:
    compared(module, pyg_sar.load_shard(root), mode, tolerance=5e-13, edges=False)


def _is_looped(module: Any, world_size: int, mode: str = 'sequential') -> bool:
    """Whether the loops computed the weights; the values are those of plain PyG."""
    of_loops = mock.Mock(wraps=programs.attention_weights)
    with mock.patch.object(programs, 'attention_weights', of_loops):
        run_as_threads(_on_rank, world_size, parts_of(world_size), module, mode)
    return of_loops.called


@pytest.mark.parametrize('in_message', [False, True])
@pytest.mark.parametrize('weigh', expressions(LOOPED + OTHERS))
def test_weights_of_a_user(weigh: str, in_message: bool) -> None:
    assert _is_looped(Scored(weigh, in_message), 2) == (weigh in expressions(LOOPED))


class Dotted(MessagePassing):
    """GATv2 of a user: scores of both ends, whose channels a parameter sums."""

    def __init__(self, weigh: str) -> None:
        super().__init__(aggr='add', node_dim=0)
        self.weigh = weigh
        self.ends = torch.nn.Linear(6, 24, dtype=torch.float64)
        self.att = torch.nn.Parameter(torch.randn(1, 3, 4, dtype=torch.float64))

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        source, own = self.ends(x).view(-1, 3, 8).split(4, dim=-1)
        w = self.edge_updater(edge_index, x=(source, own))
        return self.propagate(edge_index, x=(source, own), w=w).flatten(1)

    def edge_update(self, x_j: Tensor, x_i: Tensor, index: Tensor) -> Tensor:
        names = {'a': x_j, 'b': x_i, 'att': self.att}
        return softmax(eval(self.weigh, globals(), names), index)

    def message(self, x_j: Tensor, w: Tensor) -> Tensor:
        return w.unsqueeze(-1) * x_j


DOTS = """
(leaky(a + b) * att).sum(dim=-1); torch.sum(att * leaky(b + a, -0.3), dim=-1)
"""
OTHER_DOTS = """
(leaky(a + b) * att[:, :, :1]).sum(dim=-1); (leaky(a + b) * att).sum(dim=1)[:, :3]
(leaky(a + b) * att * att).sum(dim=-1); (leaky(a + b) * att.detach()).sum(dim=-1)
(leaky(a + b) * att).mul_(2).sum(dim=-1); leaky(((a + b) * att).sum(dim=-1))
"""


@pytest.mark.parametrize('weigh', expressions(DOTS + OTHER_DOTS))
def test_dots_of_a_user(weigh: str) -> None:
    assert _is_looped(Dotted(weigh), 2) == (weigh in expressions(DOTS))


@pairs(
    conv=[GATConv, GATv2Conv],
    world_size=[3, 1],
    heads=[1, 4],
    mode=['sequential', 'sequential_no_remat'],
)
def test_attention(conv: Any, world_size: int, heads: int, mode: str) -> None:
    assert _is_looped(conv(6, 3, heads).double(), world_size, mode)


@pytest.mark.parametrize('conv', [GATConv, GATv2Conv])
def test_of_many_heads_no_loop_is_compiled(conv: Any) -> None:
    assert not _is_looped(conv(6, 1, 65).double(), 2)


@pytest.mark.parametrize('conv', [GATConv, GATv2Conv])
@on_ranks(1)
def test_chunks_add_in_their_order(data: Any, conv: Any) -> None:
    torch.manual_seed(0)
    module, found = conv(6, 3, 4).double(), []
    with mock.patch.multiple(weighted_loops, _CHUNK_EDGES=16, _EDGES_OF_SUMS=0):
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            found.append(values(pyg_sar.SARConv(copy.deepcopy(module)), data, edges=False))
    for one, several, want in zip(*found, values(module, small_graph(), edges=False), strict=True):
        assert torch.equal(one, several)
        assert torch.allclose(one, want, rtol=0, atol=1e-12)


@on_ranks(2, by='threads')
def test_a_slope_that_changes(data: Any) -> None:
    plain_conv, conv = Scored(PLAIN), pyg_sar.SARConv(Scored(PLAIN))
    conv.load_state_dict(plain_conv.state_dict())
    for plain_conv.slope in (0.2, 0.7, -0.3, 0.2):
        conv.slope = plain_conv.slope
        want = values(plain_conv, small_graph(), edges=False)
        for ours, theirs in zip(values(conv, data, edges=False), want, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
        for module in (conv, plain_conv):
            module.zero_grad()


class Weights(Scored):
    """Its weights, times the number of the source, summed at every node."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        w = self.edge_updater(edge_index, alpha=(x, x))
        return self.propagate(edge_index, x=torch.ones_like(x)[..., None], alpha=(x, x), w=w)


def _weights_of(root: str) -> Tensor:
    data = pyg_sar.load_shard(root)
    return pyg_sar.gather(pyg_sar.SARConv(Weights(PLAIN))(data.x, data.edge_index))


@pairs(world_size=[1, 2], dtype=[torch.float32, torch.float64])
def test_scores_that_are_far_apart_or_no_numbers(
    tmp_path: Path, dtype: torch.dtype, world_size: int
) -> None:
    graph = small_graph()
    graph.x = torch.linspace(-90, 90, 3 * 40, dtype=dtype).view(40, 3)
    graph.x[4, 0], graph.x[9, 1], graph.x[11, 2] = float('-inf'), float('nan'), float('inf')
    want = Weights(PLAIN)(graph.x, graph.edge_index)
    assert want.isnan().any()
    for found in run_as_threads(_weights_of, world_size, cut(graph, world_size, tmp_path)):
        assert torch.allclose(found, want, rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_exponentials(dtype: torch.dtype) -> None:
    """Of all numbers up to zero, and of what is none."""
    module: Any = import_module('pyg_sar.utils.attention_loops')  # needs numba
    values = torch.cat([torch.linspace(-120, 0, 200_003), torch.tensor([-1e30, float('-inf')])])
    values = torch.cat([values, torch.tensor([float('nan')])]).to(dtype)
    found = values.clone()
    module.exponentials(found.numpy(), found.numel())
    want = values.double().exp()
    close = torch.finfo(dtype).eps
    assert torch.allclose(found.double(), want, rtol=2 * close, atol=2e-38, equal_nan=True)
    assert found[-2] == 0
    assert found[-1].isnan()
