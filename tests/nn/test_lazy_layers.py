"""Lazy layers get their shapes at the first forward of DistributedDataParallel, on equal values."""

from __future__ import annotations

import copy
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_same, cut_of
from few import few
from on_ranks import on_threads
from ranks import run_as_threads
from small_graphs import small_graph
from three_steps import descend, supervised
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, SAGEConv

import pyg_sar
from pyg_sar.comm.ranks import rank


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv((-1, -1), 8, add_self_loops=False)
        self.lin = torch.nn.LazyLinear(8)
        self.norm = BatchNorm(8)
        self.second = SAGEConv((-1, -1), 3)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.first(x, edge_index) + self.lin(x)).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.encode(x, edge_index), edge_index)


def _first_values(data: Any, seed: int) -> dict[str, Tensor]:
    """What plain PyG draws in the dry run that its examples make."""
    torch.manual_seed(seed)
    model = Net().double().eval()
    with torch.no_grad():
        model(data.x, data.edge_index)
    return model.state_dict()


def _train(model: Any, data: Any) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return descend(lambda: supervised(model(data.x, data.edge_index), data), optimizer)


def _on_ranks(root: str, how: str) -> Any:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(7 + 1000 * rank() * (how != 'one seed'))
    model = pyg_sar.DistributedDataParallel(Net().double())
    with torch.no_grad():
        if how == 'a dry run':
            model.eval()(data.x, data.edge_index)
        if how == 'a method':
            model.module.eval().encode(data.x, data.edge_index)
    model.train()
    if how == 'a copy':
        model = copy.deepcopy(model)
    losses = _train(model, data)
    return losses, {k: v.clone() for k, v in model.module.state_dict().items()}


@pytest.mark.parametrize('how', few(['one seed', 'other seeds', 'a dry run', 'a copy', 'a method']))
@pytest.mark.parametrize('world_size', [1, 3])
def test_as_plain_pyg_after_its_dry_run(how, world_size):
    """The optimizer is made before the parameters have shapes."""
    graph = small_graph()
    model = Net().double()
    model.load_state_dict(_first_values(graph, 7))
    want = _train(model, graph)
    root = cut_of(small_graph, 3)
    for losses, state in run_as_threads(_on_ranks, world_size, root, how):
        assert losses == pytest.approx(want, abs=1e-10, rel=0)
        assert_same(state, model.state_dict(), tolerance=1e-9)


@as_one_process(tolerance=1e-12)
def test_values_that_are_loaded_first(data: Any, wrap: Wrap) -> Tensor:
    model = wrap(Net().double())
    getattr(model, 'module', model).load_state_dict(_first_values(small_graph(), 3))
    return model.eval()(data.x, data.edge_index).detach()


@on_threads(3)
def test_widths_that_differ_are_told():
    model = pyg_sar.DistributedDataParallel(torch.nn.Sequential(torch.nn.LazyLinear(4), Net()))
    with pytest.raises(ValueError, match='lazy'):
        model.module[0](torch.ones(5, 3 + rank()))


# The dry run of lazy layers leaves nothing behind: the first step is that of plain PyG


@dataclass
class Batch:
    x: Tensor
    more: list[Tensor]


class Pair(NamedTuple):
    given: dict[str, Tensor]
    name: str


GIVEN: dict[str, Callable[[Any], Any]] = {
    'dict': lambda data: {'x': data.x},
    'nested': lambda data: Pair(OrderedDict(x=data.x), 'a'),
    'data': lambda data: Data(x=data.x),
    'hetero': lambda data: HeteroData({'node': {'x': data.x}}),
    'dataclass': lambda data: Batch(data.x, [data.x]),
    'tensor': lambda data: data.x.clone(),
}


class Writing(torch.nn.Module):
    """A forward that writes to whatever it gets and has."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = torch.nn.Parameter(torch.full((4,), 0.5))
        self.first = GCNConv(-1, 4, cached=True)
        self.lin = torch.nn.LazyLinear(4)
        self.second = SAGEConv(-1, 3)
        self.norm = torch.nn.BatchNorm1d(4)
        self.calls, self.kept = 0, []
        self.by_name: Any = defaultdict(list, a=deque([0]))
        self.counter: Any = Counter()
        self.noted: Any = Batch(torch.zeros(2), [])
        self.array = np.zeros(3)
        self.generator = torch.Generator().manual_seed(0)
        self.numpy_generator = np.random.default_rng(0)
        self.register_buffer('scale', torch.ones(()))
        self.seen: list[int] = []
        self.lin.register_forward_hook(lambda *a: self.seen.append(1))

    def _take(self, given: Any) -> Tensor:
        if isinstance(given, Pair):
            given = given.given
        if isinstance(given, HeteroData):
            given['node'].x = given['node'].x + self.kind[0]
            given['node'].more = [1]
            return given['node'].x
        if isinstance(given, Tensor):
            with torch.no_grad():
                given.mul_(1.5)
            return given + self.kind[0]
        if isinstance(given, Batch):
            given.more.append(given.x)
            given.x = given.x + len(given.more)
            return given.x + self.kind[0]
        given['x'] = given['x'] + self.kind[0]
        return given['x']

    def forward(self, given: Any, edge_index: Tensor) -> Tensor:
        x = self._take(given)
        self.calls += 1
        self.kept.append(self.calls)
        self.by_name['a'].append(1)
        self.by_name['b'].append(1)
        self.counter['forward'] += 1
        self.noted.x += 1
        self.noted.more.append(1)
        self.array += 1
        self.scale *= 1.25
        with torch.no_grad():
            self.kind.mul_(1.1)
        x = self.first(x, edge_index) + self.lin(x)
        x = self.norm(x * self.scale * self.calls) + float(self.noted.x.sum())
        x = x * len(self.kept) * len(self.by_name['b']) * len(self.noted.more) * len(self.seen)
        x = self.second(x * float(self.array[0]) * self.counter['forward'], edge_index)
        # After the last of the layers that draw their first values here.
        drawn = np.random.rand() + random.random() + float(torch.rand(()))  # noqa: NPY002
        drawn += float(torch.rand((), generator=self.generator)) + self.numpy_generator.random()
        return x * drawn


@pytest.mark.parametrize('kind', GIVEN)
@as_one_process(ranks=(3, 1), tolerance=1e-9)
def test_the_first_step_is_that_of_plain_pyg(data: Any, wrap: Wrap, kind: str) -> list[Any]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    net = Writing().double()
    model = wrap(net)
    found: list[Any] = []
    for _ in range(2):
        given = GIVEN[kind](data)
        out = model(given, data.edge_index)
        loss = F.cross_entropy(out, data.y)
        model.zero_grad()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in net.parameters())]
        found += [net.calls, len(net.kept), len(net.seen)]
    return [*found, *net.buffers(), torch.rand(())]
