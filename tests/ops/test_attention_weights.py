"""Weights of attention by their own loops: those of PyG, with every gradient."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from ranks import run_as_threads, run_ranks
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.nn import GATConv, MessagePassing
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.nn import programs
from pyg_sar.ops import weighted_loops
from pyg_sar.utils.installed import loops

pytestmark = pytest.mark.skipif(loops() is None, reason='no compiled loops')


class Scored(MessagePassing):
    """Attention of a user: scores of both ends, in one function or in two."""

    def __init__(self, weigh: Callable[..., Tensor], in_message: bool = False) -> None:
        super().__init__(aggr='add', node_dim=0)
        self.weigh, self.in_message, self.slope = weigh, in_message, 0.2
        self.lin = torch.nn.Linear(6, 12, dtype=torch.float64)
        self.ends = torch.nn.Linear(6, 6, dtype=torch.float64)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        alpha, rows = self.ends(x).split(3, dim=1), self.lin(x).view(-1, 3, 4)
        if self.in_message:
            return self.propagate(edge_index, x=rows, alpha=alpha, w=None).flatten(1)
        w = self.edge_updater(edge_index, alpha=alpha)
        return self.propagate(edge_index, x=rows, alpha=alpha, w=w).flatten(1)

    def edge_update(self, alpha_j: Tensor, alpha_i: Tensor, index: Tensor) -> Tensor:
        return self.weigh(self, alpha_j, alpha_i, index)

    def message(
        self, x_j: Tensor, alpha_j: Tensor, alpha_i: Tensor, w: Any, index: Tensor
    ) -> Tensor:
        w = self.weigh(self, alpha_j, alpha_i, index) if w is None else w
        return w.unsqueeze(-1) * x_j


def plain(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(F.leaky_relu(a + b, self.slope), index)


def turned_round(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(torch.nn.LeakyReLU(self.slope)(torch.add(b, a)), index)


def changed_scores(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    scores = F.leaky_relu(a + b, self.slope)
    scores += 0.5 * a.sin()
    return softmax(scores, index)


def changed_sum(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    total = a + b
    out = F.leaky_relu(total.mul_(2), self.slope)
    return softmax(out, index)


def changed_weights(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(F.leaky_relu(a + b, self.slope), index).mul(2)


def scaled(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(F.leaky_relu(torch.add(a, b, alpha=3), self.slope), index)


def twice(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(F.leaky_relu(a + a, self.slope), index) + 0 * b


def without_gradient(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(F.leaky_relu(a + b, self.slope), index).detach()


def one_without_gradient(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return softmax(F.leaky_relu(a.detach() + b, self.slope), index)


def dropped(self: Any, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return F.dropout(softmax(F.leaky_relu(a + b, self.slope), index), 0.0, self.training)


LOOPED = plain, turned_round, dropped
OTHERS = (
    changed_scores,
    changed_sum,
    changed_weights,
    scaled,
    twice,
    without_gradient,
    one_without_gradient,
)


def _values(module: torch.nn.Module, x: Tensor, edge_index: Any) -> list[Tensor]:
    """The result and every gradient, of a loss that is no sum of the rows alone."""
    x = x.detach().clone().requires_grad_()
    out = module(x, edge_index)
    module.zero_grad()
    (out * torch.sin(3 * out.detach())).sum().backward()
    assert x.grad is not None
    rows = [pyg_sar.gather(t.detach()) for t in (out, x.grad)]
    return rows + [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]


def _on_rank(root: str, module: torch.nn.Module, **options: Any) -> tuple[list[Tensor], int]:
    data, of_loops = pyg_sar.load_shard(root), mock.Mock(wraps=programs.attention_weights)
    wrapped = pyg_sar.DistributedDataParallel(module, **options)
    with mock.patch.object(programs, 'attention_weights', of_loops):
        found = _values(wrapped, data.x, data.edge_index)
    return found, of_loops.call_count


def _compared(tmp_path: Path, module: Any, world_size: int, run: Any, **options: Any) -> bool:
    """Whether the loops computed it; the values are those of plain PyG."""
    graph = small_graph()
    want = _values(module, graph.x, graph.edge_index)
    root = cut(graph, world_size, tmp_path)
    ranks = run(_on_rank, world_size, root, module, **options)
    for found, _ in ranks:
        for ours, theirs in zip(found, want, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    return any(count for _, count in ranks)  # threads see each other's


@pytest.mark.parametrize('in_message', [False, True])
@pytest.mark.parametrize('weigh', [*LOOPED, *OTHERS])
def test_weights_of_a_user(tmp_path: Path, weigh: Any, in_message: bool) -> None:
    module = Scored(weigh, in_message)
    assert _compared(tmp_path, module, 2, run_as_threads) == (weigh in LOOPED)


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('heads', [1, 4])
@pytest.mark.parametrize('mode', ['sequential', 'sequential_no_remat'])
def test_gat(tmp_path: Path, world_size: int, heads: int, mode: str) -> None:
    module = GATConv(6, 3, heads).double()
    assert _compared(tmp_path, module, world_size, run_ranks, mode=mode)


def _in_chunks(root: str, module: torch.nn.Module, num_threads: int) -> list[Tensor]:
    data, conv = pyg_sar.load_shard(root), pyg_sar.SARConv(module)
    torch.set_num_threads(num_threads)
    with mock.patch.multiple(weighted_loops, _CHUNK_EDGES=16, _EDGES_OF_SUMS=0):
        return _values(conv, data.x, data.edge_index)


def test_chunks_add_in_their_order(tmp_path: Path) -> None:
    graph, module = small_graph(), GATConv(6, 3, 4).double()
    want, root = _values(module, graph.x, graph.edge_index), cut(graph, 1, tmp_path)
    alone, side_by_side = (run_ranks(_in_chunks, 1, root, module, n)[0] for n in (1, 3))
    for found, again, theirs in zip(alone, side_by_side, want, strict=True):
        assert torch.equal(found, again)
        assert torch.allclose(found, theirs, rtol=0, atol=1e-12)


def _with_slopes(root: str, module: Scored, slopes: list[float]) -> list[Tensor]:
    data, conv = pyg_sar.load_shard(root), pyg_sar.SARConv(module)
    found = []
    for conv.slope in slopes:
        found += _values(conv, data.x, data.edge_index)
    return found


def test_a_slope_that_changes(tmp_path: Path) -> None:
    graph, module, slopes = small_graph(), Scored(plain), [0.2, 0.7, -0.3, 0.2]
    want: list[Tensor] = []
    for module.slope in slopes:
        want += _values(module, graph.x, graph.edge_index)
    root = cut(graph, 2, tmp_path)
    for found in run_as_threads(_with_slopes, 2, root, module, slopes):
        for ours, theirs in zip(found, want, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


class Weights(Scored):
    """Its weights, times the number of the source, summed at every node."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        w = self.edge_updater(edge_index, alpha=(x, x))
        return self.propagate(edge_index, x=torch.ones_like(x)[..., None], alpha=(x, x), w=w)


def _weights_of(root: str) -> Tensor:
    data = pyg_sar.load_shard(root)
    return pyg_sar.gather(pyg_sar.SARConv(Weights(plain))(data.x, data.edge_index))


@pytest.mark.parametrize('world_size', [1, 2])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_scores_that_are_far_apart_or_no_numbers(
    tmp_path: Path, dtype: torch.dtype, world_size: int
) -> None:
    graph = small_graph()
    graph.x = torch.linspace(-90, 90, 3 * 40, dtype=dtype).view(40, 3)
    graph.x[4, 0], graph.x[9, 1], graph.x[11, 2] = float('-inf'), float('nan'), float('inf')
    want = Weights(plain)(graph.x, graph.edge_index)
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
