"""Messages that keep, count or draw something, or change gradients: of all edges, of one call.

What runs before the call itself, to find out what a message does, leaves nothing behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_alike, cut_of, take_step
from graphs import awkward_graph
from ranks import run_as_threads
from sum_conv import SumConv
from torch import Tensor
from torch.autograd import Function
from torch_geometric.nn import MessagePassing, SumAggregation

import pyg_sar
from pyg_sar.nn.own_code import METHODS

CUT = [i % 3 for i in range(60)]


class Keeping(MessagePassing):
    """A gated, weighted neighbour, of which `keep` keeps something or has the last word."""

    calls, seen = 0, list[int]()

    def __init__(self, keep: Callable[..., Any], aggr: Any = 'add') -> None:
        super().__init__(aggr=aggr)
        self.keep = keep
        self.gate, self.lin = torch.nn.Linear(8, 1), torch.nn.Linear(8, 8)
        self.mean: Any = 0.0
        self.sums: list[Tensor] = []
        self.by_name: dict[str, Any] = {}
        self.noted: Any = SimpleNamespace(calls=0, by_name={'inner': [0]})
        self.register_buffer('count', torch.zeros(()))
        self.register_buffer('running', torch.zeros(8))
        self.lin.register_buffer('calls', torch.zeros(()))
        self.generator = np.random.default_rng(0)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_weight=edge_weight)

    def message(self, x_i: Tensor, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        gate = self.gate(x_i - x_j).sigmoid()
        out = gate * edge_weight.view(-1, 1) * self.lin(x_j).tanh()
        changed = self.keep(self, gate, out)
        return out if changed is None else changed


def _count(conv: Any, gate: Tensor, out: Tensor) -> None:
    conv.count += gate.size(0)


def _running(conv: Any, gate: Tensor, out: Tensor) -> None:
    conv.running.mul_(0.9).add_(gate.detach().mean())


def _draw_by_numpy(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    return out * float(np.random.rand()) * random.random() * conv.generator.random()  # noqa: NPY002


def _count_elsewhere(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    conv.noted.calls += 1
    conv.noted.by_name['inner'].append(1)
    return out * conv.noted.calls


def _count_inside(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    conv.lin.calls += 1
    return out * conv.lin.calls


KEEPS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    'nothing': lambda conv, gate, out: None,
    'mean': lambda conv, gate, out: setattr(conv, 'mean', gate.mean()),
    'a number': lambda conv, gate, out: setattr(conv, 'mean', gate.size(0) * 1e-3),
    'the largest': lambda conv, gate, out: setattr(conv, 'mean', float(gate.detach().max())),
    'new': lambda conv, gate, out: setattr(conv, 'new', gate.square().mean()),
    'sums': lambda conv, gate, out: conv.sums.append(gate.sum()),
    'by name': lambda conv, gate, out: conv.by_name.update(mean=gate.mean()),
    'a new dict': lambda conv, gate, out: setattr(conv, 'by_name', {'mean': gate.mean().detach()}),
    'count': _count,
    'running': _running,
    'count elsewhere': _count_elsewhere,
    'count inside': _count_inside,
    'drawn by NumPy': _draw_by_numpy,
    'by the number': lambda conv, gate, out: out if gate.size(0) < 100 else 2 * out,
}


NUMBER, TABLE = 0, dict[str, Any](calls=0)


def _in_a_global(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    global NUMBER
    NUMBER += 1
    return out * NUMBER


def _tick() -> int:
    TABLE['calls'] += 1
    return int(TABLE['calls'])


def _in_a_class(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    Keeping.calls += 1
    return out * Keeping.calls


def _in_a_closure() -> Callable[..., Any]:
    count = 0

    def keep(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return out * count

    return keep


class Meter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls

    def __enter__(self) -> None:
        self()

    def __exit__(self, *_: Any) -> None:
        pass


METER, SCALES = Meter(), [1.0, 0.5]


def _in_a_meter(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    with METER:
        return out * METER()


def _in_a_default(conv: Any, gate: Tensor, out: Tensor, seen: Any = []) -> Tensor:  # noqa: B006
    seen.append(1)
    return out * len(seen)


def _in_its_class(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    type(conv).calls += 1
    return out * conv.calls


def _what_is_read(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    out[:, 3], parts = 0, []
    for scale in SCALES:
        parts.append(torch.add(out, scale))
    return sum(parts) * 2 ** len(METHODS)


ELSEWHERE: dict[str, Callable[[], Callable[..., Any]]] = {
    'global': lambda: _in_a_global,
    'function': lambda: lambda conv, gate, out: out * _tick(),
    'mean': lambda: lambda conv, gate, out: TABLE.update(mean=gate.detach().mean()),
    'class': lambda: _in_a_class,
    'its class': lambda: _in_its_class,
    'object': lambda: _in_a_meter,
    'default': lambda: _in_a_default,
    'list of the class': lambda: lambda conv, gate, out: conv.seen.append(1),
    'closure': _in_a_closure,
}


class AskingSum(SumAggregation):
    """A sum that is another one of few messages."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = super().forward(x, *args, **kwargs)
        return out if x.size(0) else out + 1


def _steps(data: Any, wrap: Wrap, keep: str, aggr: Any = 'add', hooks: bool = False) -> list[Any]:
    """Losses of kept values, too; gradients, buffers, counts, and what is drawn afterwards."""
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    conv: Any = Keeping(KEEPS[keep], aggr() if isinstance(aggr, type) else aggr).double()
    model, hooked = wrap(conv), list[Tensor]()
    if hooks:
        conv.gate.register_forward_hook(lambda module, args, out: hooked.append(out.sum()))
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    found: list[Any] = []
    for _ in range(2):
        optimizer.zero_grad()
        conv.sums.clear()
        hooked.clear()
        x = data.x.detach().clone().requires_grad_()
        out = model(x, data.edge_index, data.edge_weight)
        kept = [conv.mean, getattr(conv, 'new', 0), *conv.sums, *conv.by_name.values(), *hooked]
        loss = F.mse_loss(out, data.x) + 0.1 * sum(kept)
        loss.backward()
        optimizer.step()
        gradients = [x.grad, *(p.grad for p in conv.parameters())]
        buffers = [conv.count, conv.running, conv.lin.calls]
        found += [out.detach(), *(each.clone() for each in (loss.detach(), *gradients, *buffers))]
        found += [len(conv.noted.by_name['inner']), conv.noted.calls, len(hooked)]
        found += [np.random.rand(), random.random(), torch.rand(())]  # noqa: NPY002
    return found


@pytest.mark.parametrize(
    'args',
    [*([keep] for keep in list(KEEPS)[1:]), ['nothing', 'add', True], ['nothing', AskingSum]],
)
def test_what_is_kept_and_seen_is_of_one_call_of_all_edges(args: Any) -> None:
    """Also by hooks, and by an aggregation."""
    assert_alike(_steps, *args, graph=awkward_graph, cut=CUT, ranks=(3, 1))


def _elsewhere(data: Any, wrap: Wrap, keep: str) -> list[Any]:
    global NUMBER
    NUMBER = Keeping.calls = TABLE['calls'] = METER.calls = 0
    _in_a_default.__defaults__[0].clear()  # type: ignore[index]
    Keeping.seen.clear()
    conv: Any = Keeping(ELSEWHERE[keep]()).double()
    model, found = wrap(conv), list[Any]()
    for _ in range(2):
        out = model(data.x, data.edge_index, data.edge_weight)
        F.mse_loss(out, data.x).backward()
        found += [out.detach(), conv.lin.weight.grad.clone(), *TABLE.values()]
    return [*found, NUMBER, Keeping.calls, len(Keeping.seen), METER.calls]


@pytest.mark.parametrize('keep', ELSEWHERE)
def test_kept_elsewhere(keep: str) -> None:
    assert_alike(_elsewhere, keep, graph=awkward_graph, cut=CUT, ranks=(3, 1), by='processes')


def test_what_only_reads_elsewhere_runs_in_blocks() -> None:
    assert run_as_threads(_paths, 3, cut_of(awkward_graph, 3, CUT), _what_is_read)[0] == ['replay']


@pytest.mark.parametrize('keep', ['by the number', 'count elsewhere'])
def test_with_an_aggregation_that_needs_all_edges_of_a_node(keep: str) -> None:
    assert_alike(_steps, keep, 'median', graph=awkward_graph, cut=CUT)


class OfNodes(SumConv):
    """A message that asks how many nodes there are."""

    def message(self, x_j: Tensor, size_i: int) -> Tensor:
        return x_j if size_i > 30 else -x_j


def _of_nodes(data: Any, wrap: Wrap) -> Tensor:
    return wrap(OfNodes())(data.x, data.edge_index)


def _blocks(conv: Any, gate: Tensor, out: Tensor) -> Tensor:
    if gate.size(0) == 0 or gate.size(0) != gate.numel():
        return out
    rows = out.view(out.size(0), -1, 2).reshape(out.shape[0], out.size(-1))
    return rows + out.new_zeros(out.size(0), 1)


def _prints(conv: Any, gate: Tensor, out: Tensor) -> None:
    print('edges', out.shape)


def _paths(root: str, keep: Any) -> list[str]:
    conv, data = pyg_sar.SARConv(Keeping(keep).double()), pyg_sar.load_shard(root)
    conv(data.x, data.edge_index, data.edge_weight)
    return list(conv.chosen_paths())


def test_sizes_that_are_right_for_a_block_are_no_reason() -> None:
    root = cut_of(awkward_graph, 3, CUT)
    assert run_as_threads(_paths, 3, root, _blocks) == [['replay']] * 3


def test_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    run_as_threads(_paths, 3, cut_of(awkward_graph, 3, CUT), _prints)
    num_edges = awkward_graph().num_edges
    assert capsys.readouterr().out == f'edges torch.Size([{num_edges}, 8])\n' * 3


def _seen(data: Any, wrap: Wrap) -> list[int]:
    conv: Any = Keeping(KEEPS['nothing']).double()
    seen: list[int] = []
    model = wrap(conv)
    for register in (
        conv.register_message_forward_hook,
        conv.register_aggregate_forward_pre_hook,
        conv.aggr_module.register_forward_hook,
        conv.lin.register_forward_pre_hook,
    ):
        register(lambda *args: seen.append(len(args)))
    model(data.x, data.edge_index, data.edge_weight).sum().backward()
    assert seen
    return seen


@pytest.mark.parametrize('program', [_of_nodes, _seen])
def test_what_is_seen(program: Any) -> None:
    """The number of nodes, and by hooks one call."""
    assert_alike(program, graph=awkward_graph, cut=CUT)


# Changes of gradients inside of a message


class Clipped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.002, 0.002)


class Unit(Clipped):
    """Of length 1, over all edges."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / grad.norm()


class Changing(MessagePassing):
    def __init__(self, function: Any, aggr: str = 'sum') -> None:
        super().__init__(aggr=aggr)
        self.lin, self.function = torch.nn.Linear(6, 3), function
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1, 3))


class OfMessages(Changing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor) -> Tensor:
        return self.function(x_j * self.scale)


class OfEdges(Changing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lin(x)
        return self.propagate(edge_index, x=h, weight=self.edge_updater(edge_index, x=h))

    def edge_update(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.function((x_i * x_j * self.scale).sum(-1, keepdim=True))

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight * x_j


CONVS = {
    'clipped, max': lambda: OfMessages(Clipped.apply, 'max'),
    'of length 1': lambda: OfMessages(Unit.apply),
    'of edges': lambda: OfEdges(Clipped.apply),
}


@pytest.mark.parametrize('name', CONVS)
@as_one_process()
def test_gradients_in_a_message(data: Any, wrap: Wrap, name: str) -> list[Any]:
    conv = wrap(CONVS[name]().double())
    return take_step(conv, data, loss=lambda out: F.cross_entropy(out, data.y))
