"""DistributedDataParallel(model) is the model: its class, its methods, its copies, its hooks."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from typing import Any

import torch
from copied_modules import WAYS, copied
from shared import Ddp, Results
from three_steps import descend, supervised
from torch import Tensor
from torch.nn import Linear, Module, ModuleDict, ModuleList
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv, Sequential


class Net(Module):
    """Parameters are used in its forward, in methods and in layers."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv, self.head, self.scale = SAGEConv(width, 8), Linear(8, 3), 1.0

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index).tanh()

    def decode(self, z: Tensor) -> Tensor:
        return self.head(z) * self.scale

    def loss(self, data: Any) -> Tensor:
        return supervised(self.decode(self.encode(data.x, data.edge_index)), data)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.decode(self.encode(x, edge_index))


class Slots(Net):
    __slots__ = ('extra',)

    def __init__(self) -> None:
        super().__init__()
        self.extra = 2.0


class Abstract(Net, abc.ABC):
    pass


class Checked(Net):
    """Attributes of some names alone."""

    def __setattr__(self, name: str, value: Any) -> None:
        assert name != '__class__'
        super().__setattr__(name, value)


class Delegates(Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Net()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__('inner'), name)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.inner(x, edge_index)


class HasModule(Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = Net()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.module(x, edge_index)


class Registered(Net):
    def __init_subclass__(cls, name: str) -> None:
        super().__init_subclass__()


class Named(Registered, name='named'):
    pass


class OwnState(Net):
    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {'was_saved': True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Outer(Module):
    def __init__(self, inner: Module) -> None:
        super().__init__()
        self.inner, self.last = inner, Linear(3, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.inner(x, edge_index))


CLASSES = (Net, Slots, Abstract, Checked, Delegates, HasModule, Named, OwnState)
Call = Callable[[Any], Tensor]


def _train(model: Any, data: Data, loss: Call | None = None) -> list[Any]:
    """Losses of two steps, and the parameters and gradients at the end."""
    call = loss or (lambda model: supervised(model(data.x, data.edge_index), data))
    losses = descend(lambda: call(model), model, lr=0.3, steps=2)
    return [losses, *((p.detach().clone(), p.grad.clone()) for p in model.parameters())]


def _seeded(make: Callable[..., Module], *args: Any) -> Module:
    torch.manual_seed(0)
    return make(*args).double()


def classes(data: Data, ddp: Ddp) -> Results:
    found = {}
    for kind in CLASSES:
        model = ddp(_seeded(kind))
        assert isinstance(model, kind)
        assert repr(model).startswith(f'{kind.__name__}(')
        found[kind.__name__] = [_train(model, data), _train(copy.deepcopy(model), data)]
    return found


def containers(data: Data, ddp: Ddp) -> Results:
    x, edges = data.x, data.edge_index
    convs = [SAGEConv(6, 8).double(), SAGEConv(8, 3).double()]
    of_names = ModuleDict({'0': SAGEConv(6, 8), '1': SAGEConv(8, 3)}).double()
    steps = [(SAGEConv(6, 8), 'x, e -> x'), torch.nn.ReLU(), (SAGEConv(8, 3), 'x, e -> x')]

    def through(first: Any, second: Any) -> Call:
        return lambda model: supervised(model[second](model[first](x, edges).relu(), edges), data)

    return {
        'list': _train(ddp(ModuleList(convs)), data, through(0, 1)),
        'dict': _train(ddp(of_names), data, through('0', '1')),
        'sequence': _train(ddp(Sequential('x, e', steps).double()), data),
    }


def methods_and_attributes(data: Data, ddp: Ddp) -> Results:
    model, x, edges = ddp(_seeded(Net)), data.x, data.edge_index
    model.scale = 3.0
    calls: list[Call] = [
        lambda model: model.loss(data),
        lambda model: model.decode(model.encode(x, edges)).pow(2).mean(),
        lambda model: model.head(model.conv(x, edges)).pow(2).mean(),
    ]
    return {str(i): _train(model, data, call) for i, call in enumerate(calls)}


def copies(data: Data, ddp: Ddp) -> Results:
    found, model = {}, ddp(_seeded(Net))
    for way in (*WAYS, 'copy'):
        other = copy.copy(model) if way == 'copy' else copied(model, way)
        assert type(other) is type(model)
        found[way] = [_train(other, data), _train(model, data)]
    return found


def two_players(data: Data, ddp: Ddp) -> Results:
    """Each learns while the other does not."""
    first, second = ddp(_seeded(Net)), ddp(_seeded(Net, 3))
    of_first, of_second = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (first, second))
    for _ in range(2):
        of_second.zero_grad()
        made = first(data.x, data.edge_index)
        second(made.detach(), data.edge_index).square().mean().backward()
        of_second.step()
        of_first.zero_grad()
        second(first(data.x, data.edge_index), data.edge_index).sin().mean().backward()
        of_first.step()
    return {'weights': [p.detach() for model in (first, second) for p in model.parameters()]}


def one_in_another(data: Data, ddp: Ddp) -> Results:
    outer = ddp(Outer(ddp(_seeded(Net))).double())
    found = [_train(outer, data), _train(outer.inner, data)]
    later = ddp(Outer(_seeded(Net)).double())
    ddp(later.inner)
    ddp(ddp(later))
    return {'at once': found, 'later': [_train(later, data), _train(later.inner, data)]}


def put_in_later(data: Data, ddp: Ddp) -> Results:
    model = ddp(_seeded(Net))
    model.head = torch.nn.Sequential(Linear(8, 8), Linear(8, 3)).double()
    model.head[0].weight = torch.nn.Parameter(torch.eye(8, dtype=torch.float64))
    model.head.append(Linear(3, 3).double())
    found = _train(model, data)
    torch.nn.utils.parametrizations.weight_norm(model.head[1])
    return {'before': found, 'after': _train(model, data)}


def a_new_head_on_plain_rows(data: Data, ddp: Ddp) -> Results:
    """Nothing of the model but the new layer is used, and no row of all ranks."""
    import pyg_sar

    model = ddp(_seeded(Net).requires_grad_(False))
    z = model.encode(data.x, data.edge_index)
    model.head = Linear(8, 3).double()

    def loss(model: Any) -> Tensor:
        own, y = pyg_sar.local((z, data.y))
        losses = torch.nn.functional.cross_entropy(model.head(own), y, reduction='none')
        return pyg_sar.loader.mean_of_batches(losses)

    losses = descend(lambda: loss(model), model, lr=0.3, steps=2)
    return {'losses': losses, 'grads': [p.grad for p in model.parameters()]}


def hooks_of_the_model(data: Data, ddp: Ddp) -> Results:
    """One changes what the model gives; a layer has two names; modes and dtypes change."""
    plain = _seeded(Net)
    plain.again = plain.head
    model, seen = ddp(plain), []
    handles = [
        model.register_forward_pre_hook(lambda module, args: seen.append('before')),
        model.register_forward_hook(lambda module, args, out: 2 * out),
        model.register_full_backward_hook(lambda *_: seen.append('backward')),
    ]
    found = _train(model, data)
    assert seen == ['before', 'backward'] * 2
    for handle in handles:
        handle.remove()
    model.eval()
    assert not model.conv.training
    model.float().double().train().apply(lambda module: None)
    model.zero_grad(set_to_none=False)
    return {'hooked': found, 'after': _train(model, data)}
