"""DistributedDataParallel: accumulation, what differs or is refused, torch's own interface."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, cut_of, itself, take_step
from ddp_model import make_model
from on_ranks import on_ranks
from ranks import run_as_threads, run_once
from small_graphs import assert_all_raise, assert_close, attempt, small_graph
from three_steps import supervised
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as Torchs
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, LGConv

import pyg_sar
from pyg_sar import DistributedDataParallel
from pyg_sar.comm.ranks import rank


def _loss(model: torch.nn.Module, data: Data) -> Tensor:
    return supervised(model(data.x, data.edge_index), data)


def _grads(model: torch.nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def _accumulated(root: str) -> list[list[Tensor]]:
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(make_model()).eval()
    with model.no_sync():
        _loss(model, data).backward()
        first = _grads(model)
        (2 * _loss(model, data)).backward()
    (3 * _loss(model, data)).backward()
    return [first, _grads(model)]


def test_no_sync_accumulates():
    """Inside no_sync gradients are a rank's own; the next backward averages all that gathered."""
    model = make_model().eval()
    _loss(model, small_graph()).backward()
    results = run_as_threads(_accumulated, 3, cut_of(small_graph, 3))
    local = [first for first, _ in results]
    # Whole gradients are in nobody's hands yet.
    assert any(not torch.equal(a, b) for a, b in zip(local[0], local[1], strict=True))
    for i, want in enumerate(_grads(model)):
        assert_close(sum(first[i] for first in local) / 3, want)
        for _, accumulated in results:
            assert_close(accumulated[i], 6 * want)


@pytest.mark.parametrize(
    ('what', 'name'), [('parameter', 'first.'), ('buffer', 'norm.running_mean')]
)
@on_ranks(3, 0, by='threads')
def test_numbers_that_differ_between_ranks(what, name):
    number = rank()
    model = make_model(number if what == 'parameter' else 0)
    if what == 'buffer':
        model.norm.running_mean[1] += number
    with pytest.raises(ValueError, match=rf"'{name}.*rank 1"):
        DistributedDataParallel(model)


class Propagate(torch.nn.Module):
    """Nothing to learn, a buffer, and a norm without parameters."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.conv = LGConv()
        self.norm = torch.nn.BatchNorm1d(6, affine=False)
        self.register_buffer('scale', torch.tensor(scale).double())

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index)) * self.scale


# What is refused, and which options reach whom.


def _built(kwargs: dict[str, Any], make: str) -> str:
    return attempt(DistributedDataParallel, MAKES[make](), **kwargs)


DTYPES = torch.float16, torch.float32, torch.int8, 'bfloat16'
MAKES: dict[str, Callable[[], torch.nn.Module]] = {
    'net': make_model,
    'no convs': lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
}


@pytest.mark.parametrize('world_size', [None, 2])
@pytest.mark.parametrize(
    ('make', 'kwargs', 'words'),
    [
        ('net', {'broadcast_buffers': True}, 'broadcast_buffers'),
        ('net', {'mode': 'parallel'}, "'mode'"),
        ('net', {'bucket_cap_mb': 0}, 'bucket_cap_mb'),
        ('net', {'device_ids': ['meta']}, 'device_ids'),
        ('net', {'mode': 'auto'}, "mode='sequential'"),
        *(('net', {'exchange_dtype': of}, f'torch.bfloat16 (got {of!r})') for of in DTYPES),
        ('no convs', {'partial_sums': False}, 'partial_sums'),
    ],
)
def test_refused_on_all_ranks(make, kwargs, words, world_size):
    args = kwargs, make
    outcomes = [_built(*args)] if world_size is None else run_as_threads(_built, world_size, *args)
    assert_all_raise(outcomes, 'ValueError', words)


@as_one_process(tolerance=1e-12)
def test_without_learnable_parameters(data: Any, wrap: Wrap) -> list[Any]:
    module = Propagate(2.0).double()
    model = wrap(module)
    with nullcontext() if wrap is itself else model.no_sync():
        return [take_step(model, data), module.state_dict()]


# Arguments and methods of torch's DistributedDataParallel, in programs written for it


HARMLESS: list[dict[str, Any]] = [
    {'output_device': None},
    {'bucket_cap_mb': None, 'mixed_precision': None, 'device_mesh': None},
    {'output_device': 0, 'dim': 0, 'init_sync': True, 'check_reduction': False},
    {'find_unused_parameters': True, 'static_graph': True, 'gradient_as_bucket_view': True},
]


@pytest.mark.parametrize('options', HARMLESS)
def test_harmless_options(options: dict[str, Any]) -> None:
    pyg_sar.DistributedDataParallel(GCNConv(2, 2), **options)


def test_others_are_named() -> None:
    with pytest.raises(TypeError, match=r"'mixed_precision' of torch's .* leave it out"):
        pyg_sar.DistributedDataParallel(GCNConv(2, 2), mixed_precision=torch.float16)
    with pytest.raises(TypeError, match="'dim' of torch's"):
        pyg_sar.DistributedDataParallel(GCNConv(2, 2), dim=1)
    with pytest.raises(TypeError, match="no option 'mod'; do you mean mode"):
        pyg_sar.DistributedDataParallel(GCNConv(2, 2), mod='one_shot')


class _Joins(GCNConv):
    def join(self) -> str:
        return 'own'


def test_methods() -> None:
    model = pyg_sar.DistributedDataParallel(GCNConv(2, 2))
    for name in ('join', 'register_comm_hook'):
        assert callable(getattr(Torchs, name))
        with pytest.raises(ValueError, match=rf"'{name}' of torch's .*: leave it out"):
            getattr(model, name)(None)
    assert model.module is model
    assert pyg_sar.DistributedDataParallel(_Joins(2, 2)).join() == 'own'
    with pytest.raises(AttributeError, match='no_such'):
        _ = model.no_such


def _two_threads(root: str) -> list[str]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    models = [pyg_sar.DistributedDataParallel(GCNConv(6, 4).double()) for _ in range(2)]

    def train(model: torch.nn.Module) -> str:
        def steps() -> None:
            for _ in range(200):
                model(data.x, data.edge_index).square().mean().backward()

        return attempt(steps)

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(train, models)]


def test_two_threads_of_one_rank() -> None:
    root = cut_of(small_graph, 2)
    found = [text for of_rank in run_once(_two_threads, 2, root) for text in of_rank]
    assert any('one thread of a rank computes on rows' in text for text in found), found
    assert 'no error' not in found
