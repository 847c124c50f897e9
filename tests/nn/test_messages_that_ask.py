"""Messages whose Python asks for the number of edges, or for values of all, get the whole graph's.

What runs before the call itself, to find out what a message does, leaves nothing behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from graphs import awkward_graph
from ranks import run_as_threads
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SumAggregation

import pyg_sar


class Asking(MessagePassing):
    """A message that `ask` has the last word of."""

    def __init__(self, ask: Callable[..., Tensor], aggr: Any = 'add') -> None:
        super().__init__(aggr=aggr)
        self.ask = ask
        self.lin = torch.nn.Linear(8, 8)
        self.noted: Any = SimpleNamespace(calls=0, seen=[], by_name={'inner': [0]})
        self.register_buffer('seen', torch.zeros(()))
        self.lin.register_buffer('calls', torch.zeros(()))
        self.generator = np.random.default_rng(0)
        self.last: Any = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Aggregated messages."""
        out: Tensor = self.propagate(edge_index, x=x, edge_weight=edge_weight)
        return out

    def message(self, x_j: Tensor, edge_weight: Tensor, index: Tensor) -> Tensor:
        """A weighted neighbour, by what was asked."""
        out = edge_weight.view(-1, 1) * self.lin(x_j).tanh()
        return self.ask(self, x_j, edge_weight, index, out)


def _size(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out if x.size(0) < 100 else 2 * out


def _shape_is_odd(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out if x.shape[0] % 2 else 3 * out


def _numel(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out if x.numel() > 1000 else out * 0


def _length(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out * (min(len(x), 50) / 50)


def _largest(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out if index.max() < 50 else -out


def _any(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return 2 * out if bool((w > 1.05).any()) else out


def _item(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out * round(w.sum().item())


def _selected(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out if w[w > 0.6].size(0) > 100 else -out


def _caught(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    try:
        return out if x.size(0) < 100 else 2 * out
    except Exception:
        return out


def _count_elsewhere(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    conv.noted.calls += 1
    conv.noted.by_name['inner'].append(1)
    return out * conv.noted.calls


def _count_inside(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    conv.lin.calls += 1
    return out * conv.lin.calls


def _keep_a_dict(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    conv.last = {'mean': w.mean().detach()}
    return out


def _draw_by_numpy(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out * float(np.random.rand()) * random.random() * conv.generator.random()  # noqa: NPY002


ASKS = [_size, _shape_is_odd, _numel, _length, _largest, _any, _item, _selected, _caught]
LEAVES = [_count_elsewhere, _count_inside, _keep_a_dict, _draw_by_numpy]


def _steps(data: Any, ask: Any, aggr: Any, world: Any) -> list[Tensor]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    conv: Any = Asking(ask, aggr() if isinstance(aggr, type) else aggr).double()
    model = world(conv)
    found = []
    for _ in range(2):
        x = data.x.detach().clone().requires_grad_()
        out = model(x, data.edge_index, data.edge_weight)
        conv.zero_grad()
        F.mse_loss(out, data.x * 2).backward()
        found += [out.detach(), x.grad, *(p.grad.clone() for p in conv.parameters())]
        found += [conv.lin.calls.clone(), torch.tensor(len(conv.noted.by_name['inner']))]
        found += [torch.tensor(conv.noted.calls), torch.tensor(np.random.rand())]  # noqa: NPY002
        found += [torch.tensor(random.random()), torch.rand(())]
        found += [] if conv.last is None else [conv.last['mean']]
    return [each if world is _plain else pyg_sar.gather(each) for each in found]


def _plain(conv: Any) -> Any:
    return conv


def _on_rank(root: str, ask: Any, aggr: Any) -> list[Tensor]:
    return _steps(pyg_sar.load_shard(root), ask, aggr, pyg_sar.DistributedDataParallel)


def _root(tmp_path: Path) -> str:
    data = awkward_graph()
    parts = torch.arange(data.num_nodes) % 3
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=parts)
    return str(tmp_path / 'parts')


@pytest.mark.parametrize('ask', ASKS + LEAVES)
def test_as_of_the_whole_graph(tmp_path: Path, ask: Any) -> None:
    root, want = _root(tmp_path), _steps(awkward_graph(), ask, 'add', _plain)
    for world_size in (3, 1):
        for got in run_as_threads(_on_rank, world_size, root, ask, 'add'):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('ask', [_size, _largest, _count_elsewhere])
def test_with_an_aggregation_that_needs_all_edges_of_a_node(tmp_path: Path, ask: Any) -> None:
    with pytest.raises(ValueError, match='rows that are spread over the ranks'):
        run_as_threads(_on_rank, 3, _root(tmp_path), ask, 'median')


class OfNodes(MessagePassing):
    """A message that asks how many nodes there are."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Sums of neighbours."""
        out: Tensor = self.propagate(edge_index, x=x)
        return out

    def message(self, x_j: Tensor, size_i: int) -> Tensor:
        """A neighbour."""
        return x_j if size_i > 30 else -x_j


def _of_nodes(root: str) -> Tensor:
    data = pyg_sar.load_shard(root)
    return pyg_sar.gather(pyg_sar.SARConv(OfNodes())(data.x, data.edge_index)).clone()


def test_the_number_of_nodes(tmp_path: Path) -> None:
    data = awkward_graph()
    want = OfNodes()(data.x, data.edge_index)
    for got in run_as_threads(_of_nodes, 3, _root(tmp_path)):
        torch.testing.assert_close(got, want)


class AskingSum(SumAggregation):
    """A sum that is another one of few messages."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Sums."""
        out: Tensor = super().forward(x, *args, **kwargs)
        return out if x.size(0) else out + 1


def _nothing(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    return out


def test_an_aggregation_that_asks(tmp_path: Path) -> None:
    root, want = _root(tmp_path), _steps(awkward_graph(), _nothing, AskingSum, _plain)
    for got in run_as_threads(_on_rank, 3, root, _nothing, AskingSum):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def _blocks(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    if x.size(0) == 0 or x.size(0) != w.numel():
        return out
    return out.view(x.size(0), -1, 2).reshape(x.shape[0], x.size(-1)) + x.new_zeros(x.size(0), 1)


def _paths(root: str) -> list[str]:
    conv = pyg_sar.SARConv(Asking(_blocks).double())
    data = pyg_sar.load_shard(root)
    conv(data.x, data.edge_index, data.edge_weight)
    return list(conv.chosen_paths())


def test_sizes_that_are_right_for_a_block_are_no_reason(tmp_path: Path) -> None:
    assert run_as_threads(_paths, 3, _root(tmp_path)) == [['replay']] * 3


def _printed(root: str) -> None:
    conv = pyg_sar.SARConv(Asking(_prints).double())
    data = pyg_sar.load_shard(root)
    conv(data.x, data.edge_index, data.edge_weight)


def _prints(conv: Any, x: Tensor, w: Tensor, index: Tensor, out: Tensor) -> Tensor:
    print('edges', x.shape)
    return out


def test_prints_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _root(tmp_path)
    run_as_threads(_printed, 3, root)
    num_edges = awkward_graph().num_edges
    assert capsys.readouterr().out == f'edges torch.Size([{num_edges}, 8])\n' * 3


def _hooked(data: Any, world: Any, register: str) -> list[Any]:
    torch.manual_seed(0)
    conv: Any = Asking(_nothing).double()
    seen: list[Any] = []
    model = world(conv)
    owner, _, name = register.rpartition('.')
    getattr(getattr(conv, owner) if owner else conv, name)(lambda *a: seen.append(len(a)))
    model(data.x, data.edge_index, data.edge_weight).sum().backward()
    return seen


def _hooked_on_rank(root: str, register: str) -> list[Any]:
    return _hooked(pyg_sar.load_shard(root), pyg_sar.DistributedDataParallel, register)


@pytest.mark.parametrize(
    'register',
    [
        'register_message_forward_hook',
        'register_aggregate_forward_pre_hook',
        'aggr_module.register_forward_hook',
        'lin.register_forward_pre_hook',
    ],
)
def test_hooks_see_one_call(tmp_path: Path, register: str) -> None:
    root, want = _root(tmp_path), _hooked(awkward_graph(), _plain, register)
    assert run_as_threads(_hooked_on_rank, 3, root, register) == [want] * 3
