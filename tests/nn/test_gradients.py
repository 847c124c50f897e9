"""Gradients of ranks' own losses and leaves, with options, of what is refused; messages of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from alike import Wrap, as_one_process, cut_of, itself, take_step
from ddp_model import make_model
from on_ranks import on_ranks
from ranks import run_once, run_ranks
from small_graphs import assign, attempt, small_graph
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as Torchs
from torch_geometric.nn import LGConv, SAGEConv
from traffic import counted

import pyg_sar
from pyg_sar import DistributedDataParallel
from pyg_sar.comm.errors import PartedError
from pyg_sar.comm.ranks import rank
from pyg_sar.loader import mean_of_batches
from pyg_sar.nn import buckets

PARTS = assign(40, 3)


def _of_ranks(out: Tensor, of_rank: Callable[[int, Tensor], Tensor]) -> Tensor:
    """What a rank computes with its own rows; in one process the mean of what all would."""
    if type(out) is not Tensor:
        return of_rank(rank(), pyg_sar.local(out))
    terms = [of_rank(r, out[r == PARTS]) for r in range(3)]
    return sum(terms[1:], start=terms[0]) / 3


def _out(data: Any, model: Any) -> Tensor:
    return model(data.x, data.edge_index)


def _loss_of_each_rank(data: Any, model: Any) -> Tensor:
    """A local mean, as in any data-parallel program."""
    return _of_ranks(_out(data, model), lambda r, own: (r + 1) * own.square().mean())


def _whole_and_own_factors(data: Any, model: Any) -> Tensor:
    """The mean of the ranks' own losses meets a value of the whole graph."""
    out = _out(data, model)
    own = _of_ranks(out, lambda r, own: own.square().sum() * (r + 1))
    own = own if type(out) is Tensor else mean_of_batches(own.view(1))
    return own * out.sin().mean()


def _values_without_gradient_on_a_rank(data: Any, model: Any) -> Tensor:
    out = _out(data, model)
    if type(out) is Tensor:
        return out[PARTS == 0].square().sum() / out.numel() + 0 * out.sum()
    own = pyg_sar.local(out)
    return mean_of_batches(own.square() if rank() == 0 else torch.zeros_like(own)) + 0 * out.sum()


def _parameter_in_the_loss_of_one_rank(data: Any, model: Any) -> Tensor:
    weight = getattr(model, 'module', model).unused.weight

    def loss(r: int, own: Tensor) -> Tensor:
        return own.square().sum() + (weight.square().sum() if r == 0 else 0)

    return _of_ranks(_out(data, model), loss)


@pytest.mark.parametrize(
    ('loss', 'has_unused'),
    [
        *((_loss_of_each_rank, False), (_whole_and_own_factors, False)),
        *((_values_without_gradient_on_a_rank, False), (_parameter_in_the_loss_of_one_rank, True)),
    ],
)
@as_one_process()
def test_losses_of_ranks(data: Any, wrap: Wrap, loss: Any, has_unused: bool) -> list[Any]:
    model = wrap(make_model(has_unused=has_unused))
    loss(data, model).backward()
    return [p.grad for p in model.parameters()]


class Extra(torch.nn.Module):
    """A parameter that only the nodes of the last rank read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = LGConv()
        self.extra = torch.nn.Parameter(torch.linspace(-1, 1, 6).double())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, is_last = self.conv(x, edge_index), (PARTS == 2).view(-1, 1)
        return self.conv(torch.where(is_last, h * self.extra, h), edge_index)


@as_one_process()
def test_a_parameter_of_the_rows_of_one_rank(data: Any, wrap: Wrap) -> list[Any]:
    return take_step(wrap(Extra()), data, loss=lambda out: out.square().mean())


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    'static graph': lambda: {'static_graph': True},
    'many buckets': lambda: {
        'bucket_cap_mb': 0.0001,
        'gradient_as_bucket_view': True,
        'process_group': dist.new_group(),
    },
}


@pytest.mark.parametrize('name', OPTIONS)
@as_one_process(by='processes')
def test_options(data: Any, wrap: Wrap, name: str) -> list[Any]:
    model = make_model()
    if wrap is not itself:
        model = DistributedDataParallel(model, **OPTIONS[name]())
    for _ in range(2):
        _out(data, model).sin().mean().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize('what', ['model', 'encoder'])
@as_one_process(by='processes')
def test_torchs_own_wrapper(data: Any, wrap: Wrap, what: str) -> list[Any]:
    """Torch's wrapper around a wrapped model, or around dense layers before it."""
    is_ranks = wrap is not itself
    model, encoder = wrap(make_model()), torch.nn.Linear(6, 6).double()
    if what == 'model':
        model = Torchs(model) if is_ranks else model
        model(data.x, data.edge_index).sin().mean().backward()
        return [p.grad for p in model.parameters()]
    encoder = Torchs(encoder) if is_ranks else encoder
    for _ in range(2):
        model(encoder(data.x).tanh(), data.edge_index).sin().mean().backward()
    return [p.grad for each in (encoder, model) for p in each.parameters()]


@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(by='threads')
def test_hooks_of_gradients_wait_for_the_end_of_no_sync(data, world_size):
    model, calls = DistributedDataParallel(make_model()), []
    with model.no_sync():
        model.module.head.bias.register_post_accumulate_grad_hook(calls.append)
        _out(data, model).sin().mean().backward()
    assert len(calls) == (world_size == 1)
    _out(data, model).sin().mean().backward()
    assert len(calls) == (2 if world_size == 1 else 1)


@on_ranks(3)
def test_autograd_grad_that_nothing_would_sum_is_refused(data):
    model = DistributedDataParallel(make_model())
    parameters = list(model.parameters())
    loss = model(data.x, data.edge_index).square().mean()
    penalty = sum(p.square().sum() for p in parameters)
    with pytest.raises(RuntimeError, match='computes no second derivatives'):
        torch.autograd.grad(penalty, parameters, create_graph=True)
    with model.no_sync(), pytest.raises(RuntimeError, match='share'):
        torch.autograd.grad(loss, parameters)


@on_ranks(3, by='threads')
def test_a_loss_of_one_rank_that_reads_a_value_of_the_whole(data):
    """Its gradient of that value is another one on every rank."""
    x = data.x.clone().requires_grad_()
    (pyg_sar.local(x).sum() * x.square().sum()).backward()
    with pytest.raises(PartedError, match='gradient of a sum over all ranks'):
        data.x.sum()


@on_ranks(2, 0)
def test_create_graph_is_refused():
    model = DistributedDataParallel(make_model())
    loss = model.module.head(torch.ones(2, 8).double()).square().sum()
    with pytest.raises(RuntimeError, match='create_graph'):
        loss.backward(create_graph=True)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise ValueError('not today')


@as_one_process(by='processes')
def test_a_backward_that_failed_leaves_nothing_behind(data: Any, wrap: Wrap) -> list[Tensor]:
    """A backward that fails on all ranks after some parameters have their gradients."""
    model, calls = wrap(make_model()), list[Tensor]()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(calls.append)
    out = model(Fails.apply(data.x.clone().requires_grad_()), data.edge_index)
    assert attempt(out.square().mean().backward) == 'ValueError: not today'
    assert wrap is itself or not calls
    calls.clear()
    model.zero_grad()
    _out(data, model).square().mean().backward()
    gradients = [p.grad for p in model.parameters()]
    assert len(calls) == len(gradients)
    return gradients


def _first(model: torch.nn.Module) -> Tensor:
    grad = next(model.parameters()).grad
    assert grad is not None
    return grad


CHANGES: dict[str, Callable[[torch.nn.Module], object]] = {
    'zero_grad': lambda model: model.zero_grad(),
    'zeros': lambda model: model.zero_grad(set_to_none=False),
    'scaled': lambda model: _first(model).mul_(3),
    'none': lambda model: setattr(next(model.parameters()), 'grad', None),
}


@pytest.mark.parametrize('of_model', [True, False])
@pytest.mark.parametrize('name', CHANGES)
@on_ranks(by='threads')
def test_gradients_from_before_that_one_rank_changes(data, name, of_model):
    """An error where they are added to; none for the caller of autograd.grad."""
    conv = SAGEConv(6, 3).double()
    model = DistributedDataParallel(make_model()) if of_model else pyg_sar.SARConv(conv)
    _out(data, model).sin().mean().backward()
    if rank() == 1:
        CHANGES[name](model)
    torch.autograd.grad(_out(data, model).sin().mean(), list(model.parameters()))
    words = r'rank 1 has other numbers than rank 0\): zero_grad\(\)'
    with pytest.raises(ValueError, match=words):
        _out(data, model).sin().mean().backward()
    model.zero_grad()
    _out(data, model).sin().mean().backward()


@as_one_process()
def test_gradients_from_before(data: Any, wrap: Wrap) -> list[Any]:
    """Of two models that are trained in turns, with frozen layers, and gathered without sums."""
    models = [wrap(make_model()) for _ in range(2)]
    loose, found = torch.linspace(-1, 1, 8).double().requires_grad_(), list[Any]()

    def backward(factor: float = 1) -> None:
        hidden = _out(data, models[0]) * loose[:3]
        out = models[1](data.x * hidden.sum(1, keepdim=True), data.edge_index)
        (factor * out.sin().mean()).backward()
        found.extend(p.grad.clone() for p in models[1].parameters() if p.grad is not None)

    for step in range(3):
        models[step % 2].zero_grad(set_to_none=step == 0)
        backward()
        for p in models[1].second.parameters():
            p.requires_grad_(step == 1)
        with nullcontext() if wrap is itself else models[0].no_sync():
            backward(0.5)
            loss = _out(data, models[1]).square().mean()
            found.extend(torch.autograd.grad(loss, list(models[1].first.parameters())))
        backward(2)
    return [*found, loose.grad, *(p.grad for p in models[0].parameters())]


def _counted(root: str) -> list[int]:
    """Messages of a loss, of backward inside no_sync, of backward; of rows that are centred."""
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(make_model())
    out = model.module.second(model.module.first(data.x, data.edge_index), data.edge_index)
    with counted() as of_loss:
        loss = out.square().mean()
    with model.no_sync(), counted() as without:
        loss.backward(retain_graph=True)
    with counted() as with_sum:
        loss.backward()
    head = DistributedDataParallel(torch.nn.Linear(6, 3).double())
    for _ in range(3):  # a sum that followed before is announced
        hidden = head(data.x)
        with counted() as forward:
            loss = (hidden - hidden.mean(0)).square().mean()
        with counted() as backward:
            loss.backward()
    return [each.others for each in (of_loss, without, with_sum, forward, backward)]


def test_one_reduction_per_backward() -> None:
    """And one by the mean in forward; a plain tensor that meets rows takes one in backward."""
    for loss, without, with_sum, *centred in run_once(_counted, 3, cut_of(small_graph, 3)):
        assert loss == 1
        assert with_sum == without + 2  # and the one that collectives begin with
        assert centred == [2, 2]
    assert run_ranks(_counted, 1, cut_of(small_graph, 1)) == [[0] * 5]


# Flags and digits that travel with the sum of the gradients are read exactly


NUMBER = 0x9E3779B97F4A7C15


@pytest.mark.parametrize('size', [2, 3, 7, 64, 1000, 4095])
@pytest.mark.parametrize(
    'dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
)
def test_what_ranks_tell(dtype: torch.dtype, size: int) -> None:
    """Any number of ranks has set a flag; one rank's number is another one in its last bit."""
    for odd in (NUMBER, NUMBER + 1):
        flags = [[rank < count for count in (0, 1, size)] for rank in range(size)]
        told = [
            buckets._Message(own, odd if rank == size - 1 else NUMBER, size, dtype)
            for rank, own in enumerate(flags)
        ]
        numbers = torch.tensor([each.numbers for each in told], dtype=dtype) / size
        total = torch.zeros(3, dtype=dtype)
        for own in numbers:  # in the precision of the dtype
            total += own
        for each in (told[0], told[-1]):
            counts = each.read(total.real.tolist())
            assert [count > 0 for count in counts] == [False, True, True]
            assert counts == [0, 1, size] or not each._base
            assert each.is_alike == (odd == NUMBER or not each._base)
    has_digits = torch.finfo(dtype).eps * size**2 < 0.2
    assert bool(told[0]._base) >= has_digits
