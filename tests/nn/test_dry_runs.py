"""The dry run of lazy layers leaves nothing behind: the first step is that of plain PyG."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, SAGEConv


@dataclass
class Batch:
    x: Tensor
    more: list[Tensor]


class Pair(NamedTuple):
    given: dict[str, Tensor]
    name: str


def _dict(data: Any) -> Any:
    return {'x': data.x}


def _nested(data: Any) -> Any:
    return Pair(OrderedDict(x=data.x), 'a')


def _data(data: Any) -> Any:
    return Data(x=data.x)


def _hetero(data: Any) -> Any:
    out = HeteroData()
    out['node'].x = data.x
    return out


def _dataclass(data: Any) -> Any:
    return Batch(data.x, [data.x])


def _tensor(data: Any) -> Any:
    return data.x.clone()


class Net(torch.nn.Module):
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


def _steps(data: Any, wrap: Wrap, make: Any) -> list[Any]:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    net = Net().double()
    model = wrap(net)
    found: list[Any] = []
    for _ in range(2):
        given = make(data)
        out = model(given, data.edge_index)
        loss = F.cross_entropy(out, data.y)
        model.zero_grad()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in net.parameters())]
        found += [net.calls, len(net.kept), len(net.seen)]
    return [*found, *net.buffers(), torch.rand(())]


@pytest.mark.parametrize('make', [_dict, _nested, _data, _hetero, _dataclass, _tensor])
def test_the_first_step_is_that_of_plain_pyg(make: Any) -> None:
    assert_alike(_steps, make, ranks=(3, 1), tolerance=1e-9)
