"""DistributedDataParallel(model) is the model: every way of using it trains as in plain PyG."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from copied_modules import WAYS, copied
from on_ranks import parts_of
from ranks import run_ranks
from small_graphs import assert_close, attempt, small_graph
from torch import Tensor
from torch_geometric.nn import GAE, SAGEConv, Sequential

import pyg_sar
from pyg_sar import DistributedDataParallel


class Net(torch.nn.Module):
    """Parameters are used in its forward, in methods and in layers."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv, self.head, self.scale = SAGEConv(width, 8), torch.nn.Linear(8, 3), 1.0

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index).tanh()

    def decode(self, z: Tensor) -> Tensor:
        return self.head(z) * self.scale

    def loss(self, data: Any) -> Tensor:
        out = self.decode(self.encode(data.x, data.edge_index))
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

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


class Delegates(torch.nn.Module):
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


class HasModule(torch.nn.Module):
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


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, torch.nn.Linear(3, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.inner(x, edge_index))


Wrap = Callable[[torch.nn.Module], Any]
Loss = Callable[[Any, Any], Tensor]
PROGRAMS: dict[str, Callable[[Any, Wrap], list[Tensor]]] = {}


def program(function: Callable[[Any, Wrap], list[Tensor]]) -> Any:
    PROGRAMS[function.__name__] = function
    return function


def _loss(model: Any, data: Any) -> Tensor:
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def _train(model: Any, data: Any, loss_of: Loss = _loss, steps: int = 2) -> list[Tensor]:
    """Losses, and the parameters and gradients at the end."""
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    ends = [t for p in model.parameters() for t in (p, p.grad) if t is not None]
    return [*losses, *(t.detach().clone() for t in ends)]


CLASSES = (Net, Slots, Abstract, Checked, Delegates, HasModule, Named, OwnState)


@program
def classes(data: Any, wrap: Wrap) -> list[Tensor]:
    found = []
    for kind in CLASSES:
        model = wrap(kind())
        assert isinstance(model, kind)
        assert repr(model).startswith(f'{kind.__name__}(')
        found += _train(model, data) + _train(copy.deepcopy(model), data)
    return found


@program
def containers(data: Any, wrap: Wrap) -> list[Tensor]:
    def through(convs: Any) -> Loss:
        return lambda model, data: _loss(
            lambda x, e: convs(model)[1](convs(model)[0](x, e).relu(), e), data
        )

    layers = [SAGEConv(6, 8), SAGEConv(8, 3)]
    as_list = wrap(torch.nn.ModuleList(layers))
    found = _train(as_list, data, through(lambda model: model))
    of_names = wrap(torch.nn.ModuleDict({'0': SAGEConv(6, 8), '1': SAGEConv(8, 3)}))
    found += _train(of_names, data, through(lambda model: [model['0'], model['1']]))
    steps = [(SAGEConv(6, 8), 'x, e -> x'), torch.nn.ReLU(), (SAGEConv(8, 3), 'x, e -> x')]
    return found + _train(wrap(Sequential('x, e', steps)), data)


@program
def methods_and_attributes(data: Any, wrap: Wrap) -> list[Tensor]:
    model = wrap(Net())
    model.scale = 3.0
    found = _train(model, data, lambda model, data: model.loss(data))
    found += _train(model, data, lambda m, d: m.decode(m.encode(d.x, d.edge_index)).pow(2).mean())
    return found + _train(model, data, lambda m, d: m.head(m.conv(d.x, d.edge_index)).pow(2).mean())


@program
def an_autoencoder(data: Any, wrap: Wrap) -> list[Tensor]:
    pairs = torch.tensor([[0, 1, 2], [3, 4, 5]])
    loss = lambda m, d: m.recon_loss(m.encode(d.x, d.edge_index), pairs, pairs.flip(1))  # noqa: E731
    return _train(wrap(GAE(SAGEConv(6, 8))), data, loss)


@program
def copies(data: Any, wrap: Wrap) -> list[Tensor]:
    found, model = [], wrap(Net())
    for way in (*WAYS, 'copy'):
        other = copy.copy(model) if way == 'copy' else copied(model, way)
        assert type(other) is type(model)
        found += _train(other, data) + _train(model, data)
    return found


@program
def two_players(data: Any, wrap: Wrap) -> list[Tensor]:
    first, second = wrap(Net()), wrap(Net(3))
    of_first, of_second = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (first, second))
    for _ in range(2):
        of_second.zero_grad()
        made = first(data.x, data.edge_index)
        second(made.detach(), data.edge_index).square().mean().backward()
        of_second.step()
        of_first.zero_grad()
        second(first(data.x, data.edge_index), data.edge_index).sin().mean().backward()
        of_first.step()
    return [p.detach().clone() for model in (first, second) for p in model.parameters()]


@program
def one_in_another(data: Any, wrap: Wrap) -> list[Tensor]:
    outer = wrap(Outer(wrap(Net())))
    found = _train(outer, data) + _train(outer.inner, data)
    later = wrap(Outer(Net()))
    wrap(later.inner)
    wrap(wrap(later))
    return found + _train(later, data) + _train(later.inner, data)


@program
def put_in_later(data: Any, wrap: Wrap) -> list[Tensor]:
    model = wrap(Net())
    model.head = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    model.head[0].weight = torch.nn.Parameter(torch.eye(8, dtype=torch.float64))
    model.head.append(torch.nn.Linear(3, 3))
    found = _train(model, data)
    torch.nn.utils.parametrizations.weight_norm(model.head[1])
    return found + _train(model, data)


@program
def a_new_head_on_plain_rows(data: Any, wrap: Wrap) -> list[Tensor]:
    """Nothing of the model but the new layer is used, and no row of all ranks."""
    model = wrap(Net().requires_grad_(False))
    z = model.encode(data.x, data.edge_index)
    model.head = torch.nn.Linear(8, 3)

    def loss_of(model: Any, data: Any) -> Tensor:
        losses = F.cross_entropy(
            model.head(pyg_sar.local(z)), pyg_sar.local(data.y), reduction='none'
        )
        return pyg_sar.loader.mean_of_batches(losses)

    return _train(model, data, loss_of)


@program
def habits(data: Any, wrap: Wrap) -> list[Tensor]:
    """Clipping, an average of the weights, hooks, accumulation, other dtypes, shared layers."""
    plain = Net()
    plain.again = plain.head
    model, seen = wrap(plain), []
    handles = [
        model.register_forward_pre_hook(lambda module, args: seen.append('before')),
        model.register_forward_hook(lambda module, args, out: 2 * out),
        model.register_full_backward_hook(lambda *_: seen.append('backward')),
    ]
    found = _train(model, data)
    assert seen == ['before', 'backward'] * 2
    for handle in handles:
        handle.remove()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync() if hasattr(model, 'no_sync') else nullcontext():
            model.loss(data).backward()
        model.loss(data).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        average.update_parameters(model)
    found += [_loss(average, data).detach(), *(p.detach() for p in average.parameters())]
    model.eval()
    assert not model.conv.training
    model.float().double().train().apply(lambda module: None)
    model.zero_grad(set_to_none=False)
    return found + _train(model, data)


@program
def compiled(data: Any, wrap: Wrap) -> list[Tensor]:
    after = torch.compile(wrap(Net()), backend='eager')
    before = wrap(torch.compile(Net(), backend='eager'))
    return _train(after, data) + _train(before, data)


def _run(name: str, data: Any, wrap: Wrap) -> list[Tensor]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        return PROGRAMS[name](data, wrap)
    finally:
        torch.set_default_dtype(torch.float32)


def _of_rank(root: str, name: str) -> list[Tensor]:
    return _run(name, pyg_sar.load_shard(root), DistributedDataParallel)


@pytest.mark.filterwarnings('ignore:The .grad attribute of a Tensor')  # torch.compile looks at it
@pytest.mark.filterwarnings('ignore:Full backward hook is firing', 'ignore:.*torch.compile')
@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('name', PROGRAMS)
def test_program(name: str, world_size: int) -> None:
    want = _run(name, small_graph(), lambda model: model)
    for found in run_ranks(_of_rank, world_size, str(parts_of(world_size)), name):
        for got, tensor in zip(found, want, strict=True):
            assert_close(got, tensor, tolerance=1e-10)


def test_the_object_and_its_class() -> None:
    model = Net()
    keys = list(model.state_dict())
    made = DistributedDataParallel(model)
    assert made is model
    assert isinstance(made, DistributedDataParallel)
    assert made.module is made
    assert list(made.state_dict()) == keys
    for name in ('__name__', '__qualname__', '__module__', '__doc__'):
        assert getattr(type(made), name) == getattr(Net, name)
    assert type(type(made)(4)) is Net
    assert type(made) is type(DistributedDataParallel(Net()))
    assert made is DistributedDataParallel(made)
    other = HasModule()
    assert DistributedDataParallel(other).module is other._modules['module']


def test_a_model_of_torchscript_is_refused() -> None:
    with pytest.warns((DeprecationWarning, FutureWarning)):  # of torch 2.13, and later ones
        script = torch.jit.script(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r'without torch\.jit'):
        DistributedDataParallel(script)


def _traced(root: str) -> list[str]:
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(Net().double())
    other = pyg_sar.DistributedDataParallel(Net().double())
    graph = data.x, data.edge_index
    outcomes = [attempt(torch.jit.trace, each, graph) for each in (model, other, model.conv)]
    model.loss(data).backward()  # the ranks go on
    return outcomes


@pytest.mark.filterwarnings('ignore::FutureWarning')
def test_a_trace_is_refused_on_all_ranks() -> None:
    torch.manual_seed(0)
    for outcomes in run_ranks(_traced, 3, str(parts_of(3))):
        for outcome in outcomes:
            assert outcome.startswith("ValueError: 'torch.jit.trace' of rows"), outcome
            assert 'trace the plain model' in outcome
