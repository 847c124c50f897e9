"""What a message reads may be another at every call, or changed before backward: right, or told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_alike, gradient, take_step
from sum_conv import SumConv
from torch import Tensor
from torch.nn import Linear, ModuleList, Parameter
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from pyg_sar.nn import agreement
from pyg_sar.nn.own_code import what_it_reads
from pyg_sar.utils.class_swap import name_of

SWITCH = SimpleNamespace(is_on=False)  # one for all threads: only tests on one rank turn it


class Own(pyg.MessagePassing):
    """A conv with parts for messages of many kinds."""

    def __init__(self) -> None:
        super().__init__(aggr='sum', node_dim=0)
        self.lin, self.gates = Linear(6, 4), ModuleList(Linear(4, 4) for _ in range(3))
        self.slope, self.scale, self.options = 0.2, torch.ones(4), SimpleNamespace(kind='copy')
        self.act: Callable[[Tensor], Tensor] = torch.clone
        self.register_buffer('step', torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Any, **given: Any) -> Tensor:
        for name, value in given.items():
            setattr(self, name, value)
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class Hops(Own):
    """Another layer at every call of propagate."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = self.lin(x)
        for self.hop in range(3):
            x = x + self.propagate(edge_index, x=x)
        return x

    def message(self, x_j: Tensor) -> Tensor:
        return self.gates[self.hop](x_j).tanh()


class Phases(Own):
    """A copy first, then a gate of both ends."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        self.phase = 'copy'
        x = self.propagate(edge_index, x=self.lin(x))
        self.phase = 'gate'
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j if self.phase == 'copy' else x_j * torch.sigmoid(self.gates[0](x_i))


class Slopes(Own):
    """Weights of attention by a number that forward gets."""

    def __init__(self) -> None:
        super().__init__()
        self.att = Parameter(torch.linspace(-1, 1, 4).view(1, 2, 2))

    def forward(self, x: Tensor, edge_index: Any, slope: float) -> Tensor:
        self.slope = slope
        x = self.lin(x).view(-1, 2, 2)
        alpha = self.edge_updater(edge_index, x=(x, x))
        return self.propagate(edge_index, x=(x, x), alpha=alpha).flatten(1)

    def edge_update(self, x_j: Tensor, x_i: Tensor, index: Any, ptr: Any, size_i: Any) -> Tensor:
        x = F.leaky_relu(x_i + x_j, self.slope)
        return softmax((x * self.att).sum(dim=-1), index, ptr, size_i)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return x_j * alpha.unsqueeze(-1)


class Arguments(Own):
    """A module, a function and a dict as arguments of propagate."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x, out = self.lin(x), torch.zeros(())
        for gate in self.gates:
            for act, options in ((torch.clone, {}), (torch.tanh, {'doubles': True})):
                out = out + self.propagate(edge_index, x=x, gate=gate, act=act, options=options)
        return out

    def message(self, x_j: Tensor, gate: Any, act: Any, options: dict[str, bool]) -> Tensor:
        out: Tensor = act(gate(x_j))
        return 2 * out if options else out


class OfObject(Own):
    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j if self.options.kind == 'copy' else (x_i * x_j).tanh()


class OfFunction(Own):
    def message(self, x_j: Tensor) -> Tensor:
        return self.act(x_j)


class OfTensor(Own):
    def message(self, x_j: Tensor) -> Tensor:
        return (x_j * self.scale).tanh()


@pytest.mark.parametrize('kind', [Hops, Phases, Arguments])
@as_one_process(ranks=(1, 3))
def test_it_changes_in_one_forward(data: Data, wrap: Wrap, kind: type[Own]) -> list[Any]:
    model = wrap(kind().double())
    return [take_step(model, data, grad=gradient) for _ in range(2)]


CHANGES: dict[type[Own], list[dict[str, Any]]] = {
    Slopes: [{'slope': 0.2}, {'slope': 0.9}, {'slope': 0.2}],
    OfObject: [{}, {'options': SimpleNamespace(kind='both')}, {}],
    OfFunction: [{}, {'act': torch.tanh}, {'act': torch.sin}],
    OfTensor: [{}, {'scale': torch.arange(4.0).double()}],
}


@pytest.mark.parametrize('kind', CHANGES)
@as_one_process(ranks=(1, 3))
def test_it_changes_between_forwards(data: Data, wrap: Wrap, kind: type[Own]) -> list[Any]:
    model = wrap(kind().double())
    return [take_step(model, data, grad=gradient, **change) for change in CHANGES[kind]]


def _changed_in_place(data: Data, wrap: Wrap) -> list[Any]:
    model, found = wrap(OfObject().double()), []
    for kind in ('copy', 'both'):
        model.options.kind = kind
        found += take_step(model, data, grad=gradient)
    return found


def _changed_outside(data: Data, wrap: Wrap) -> list[Any]:
    class OfGlobal(Own):
        def message(self, x_j: Tensor) -> Tensor:
            return x_j.tanh() if SWITCH.is_on else x_j

    model, found = wrap(OfGlobal().double()), []
    for SWITCH.is_on in (False, True):
        found += take_step(model, data, grad=gradient)
    return found


def _replaced_on_the_class(data: Data, wrap: Wrap) -> list[Any]:
    class Redefined(Own):
        pass

    model = wrap(Redefined().double())
    found = take_step(model, data, grad=gradient)
    Redefined.message = lambda self, x_j: x_j.tanh()  # type: ignore[method-assign]
    return found + take_step(model, data, grad=gradient)


@pytest.mark.parametrize('program', [_changed_in_place, _changed_outside, _replaced_on_the_class])
def test_nothing_of_the_conv_is_set(program: Any) -> None:
    assert_alike(program, ranks=(1,))


@pytest.mark.parametrize('kind', CHANGES)
@as_one_process(ranks=(1, 3))
def test_a_backward_of_two_forwards(data: Data, wrap: Wrap, kind: type[Own]) -> list[Any]:
    model = wrap(kind().double())
    first, second = (model(data.x, data.edge_index, **change) for change in CHANGES[kind][:2])
    (first - second).square().sum().backward()
    return [gradient(p) for p in model.parameters()]


class OfBuffer(Own):
    """A buffer that forward changes in place."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        self.step += 1
        return super().forward(x, edge_index)

    def message(self, x_j: Tensor) -> Tensor:
        return (x_j + self.step).tanh()


class OfMode(Own):
    """A message that asks whether gradients are needed."""

    def message(self, x_j: Tensor) -> Tensor:
        return self.gates[0](x_j) + int(torch.is_grad_enabled())


class OfNeed(Own):
    def message(self, x_j: Tensor) -> Tensor:
        out = self.gates[0](x_j)
        return 2 * out if out.requires_grad else out


@pytest.mark.parametrize('kind', [OfBuffer, OfMode, OfNeed])
def test_what_backward_would_compute_otherwise(kind: type[Own]) -> None:
    def two_forwards(data: Data, wrap: Wrap) -> None:
        model = wrap(kind().double())
        outs = [model(data.x, data.edge_index) for _ in range(2)]
        sum(out.square().sum() for out in outs).backward()

    with pytest.raises(RuntimeError, match='gives other numbers in backward than in forward'):
        assert_alike(two_forwards, ranks=(1,))


FROZEN: dict[str, Callable[[], Any]] = {
    'EdgeConv': lambda: pyg.EdgeConv(Linear(12, 4)),
    'GATv2': lambda: pyg.GATv2Conv(6, 4),
    'Transformer': lambda: pyg.TransformerConv(6, 4),
    'ResGated': lambda: pyg.ResGatedGraphConv(6, 4),
    'SAGE, softmax': lambda: pyg.SAGEConv(6, 4, aggr=pyg.SoftmaxAggregation(learn=True)),
    'own': Hops,
}


@pytest.mark.parametrize('name', FROZEN)
@as_one_process(ranks=(1, 3))
def test_frozen_first(data: Data, wrap: Wrap, name: str) -> list[Any]:
    """A probe first, then all parameters learn, then some."""
    model: Any = wrap(ModuleList([FROZEN[name](), Linear(4, 3)]).double())
    conv, head = model
    found = []
    for learn in (False, True, False):
        conv.requires_grad_(learn)
        model.zero_grad()
        loss = F.cross_entropy(head(conv(data.x, data.edge_index)), data.y)
        loss.backward()
        found += [loss.detach(), *(gradient(p) for p in model.parameters())]
    return found


class Helped(pyg.MessagePassing):
    """Numbers, layers and functions of torch, also by a method."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.gates = 0.2, ModuleList(Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Any) -> Tensor:
        return self._gated(torch.cat([x_i, x_j], dim=-1)[:, :4]) * self.slope

    def _gated(self, x: Tensor) -> Tensor:
        return torch.stack([F.relu(gate(x)) for gate in self.gates]).sum(0)


class ByName(Helped):
    def _gated(self, x: Tensor) -> Tensor:
        return x * getattr(self, 'slope')  # noqa: B009


def test_which_messages_may_read_anything() -> None:
    own = type('Sum', (SumConv,), {})()  # PyG would compile the propagate of SumConv for all tests
    known = [pyg.GATConv(6, 4), pyg.EdgeConv(Linear(12, 4)), own, Helped(), Hops(), Phases()]
    others = [OfObject(), OfTensor(), OfBuffer(), OfMode(), OfNeed(), ByName()]
    assert [what_it_reads(conv.modules())[0] for conv in known] == [False] * len(known)
    assert [what_it_reads(conv.modules())[0] for conv in others] == [True] * len(others)


def _three_forwards(data: Data, wrap: Wrap) -> None:
    for conv in (Helped(), OfTensor()):
        model = wrap(conv.double())
        for _ in range(3):
            model(data.x, data.edge_index)


def test_these_alone_are_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes milliseconds, which small graphs feel."""
    seen: list[str] = []
    read = agreement.analyze

    def noted(call: Any) -> Any:
        seen.append(name_of(call.conv))
        return read(call)

    monkeypatch.setattr(agreement, 'analyze', noted)
    assert_alike(_three_forwards, ranks=(1,))
    assert seen == ['Helped', *['OfTensor'] * 3]
