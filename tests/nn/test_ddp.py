"""DistributedDataParallel: gradients of one process, and every rank ends up the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_model import make_model
from on_ranks import on_ranks
from ranks import run_ranks
from small_graphs import assert_all_raise, assert_close, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import LGConv

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv


def _loss(model: torch.nn.Module, data: Data) -> Tensor:
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def _grads(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefixes of SARConv, by the order of the parameters."""
    return dict(enumerate(tensors.values()))  # type: ignore[arg-type]


def _assert_same(found: dict[Any, Tensor], want: dict[Any, Tensor], **kwargs: float) -> None:
    found, want = _plain_names(found), _plain_names(want)
    assert list(found) == list(want)
    for key, value in want.items():
        assert_close(found[key], value, **kwargs)


def _root(graph: Data, tmp_path: Path, num_parts: int, kind: str = 'uneven') -> str:
    return str(cut(graph, num_parts, tmp_path / f'parts {num_parts} {kind}', kind))


def _accumulated(root: str) -> list[dict[str, Tensor]]:
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(make_model())
    model.eval()
    steps = []
    with model.no_sync():
        _loss(model, data).backward()
        steps.append(copy.deepcopy(_grads(model.module)))
        (2 * _loss(model, data)).backward()
    (3 * _loss(model, data)).backward()
    steps.append(_grads(model.module))
    return steps


def test_no_sync_accumulates(graph, tmp_path):
    """Inside no_sync gradients are a rank's own; the next backward averages all that gathered."""
    model = make_model().eval()
    _loss(model, graph).backward()
    one = _grads(model)
    results = run_ranks(_accumulated, 3, _root(graph, tmp_path, 3))
    local = [first for first, _ in results]
    names = list(local[0])
    # Whole gradients are in nobody's hands yet.
    assert any(not torch.equal(local[0][name], local[1][name]) for name in names)
    _assert_same({n: sum(gradients[n] for gradients in local) / 3 for n in names}, one)
    for _, accumulated in results:
        _assert_same(accumulated, {name: 6 * value for name, value in one.items()})


@pytest.mark.parametrize(
    ('what', 'name'), [('parameter', 'first.'), ('buffer', 'norm.running_mean')]
)
@on_ranks(3, 0)
def test_numbers_that_differ_between_ranks(what, name):
    rank = dist.get_rank()
    model = make_model(rank if what == 'parameter' else 0)
    if what == 'buffer':
        model.norm.running_mean[1] += rank
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


@on_ranks()
def test_without_learnable_parameters(data):
    graph, results = small_graph(), []
    for of, wrapped in ((graph, None), (data, DistributedDataParallel)):
        module = Propagate(2.0).double()
        model = module if wrapped is None else wrapped(module)
        x = of.x.clone().requires_grad_()
        with nullcontext() if wrapped is None else model.no_sync():
            out = model(x, of.edge_index)
            out.pow(2).sum().backward()
        results.append((*pyg_sar.local((out.detach(), x.grad)), module.state_dict()))
    (out, grad, state), (own, own_grad, own_state) = results
    n_id = pyg_sar.local(data.n_id)
    assert_close(own, out[n_id])
    assert_close(own_grad, grad[n_id])
    assert own_state['scale'] == 2.0
    assert_close(own_state['norm.running_var'], state['norm.running_var'])


def test_one_process_without_init(graph, tmp_path):
    data = pyg_sar.load_shard(_root(graph, tmp_path, 3))
    plain, module = make_model(), make_model()
    model = DistributedDataParallel(module)
    assert model.module is module
    assert isinstance(module.first, SARConv)
    with model.no_sync():
        _loss(model, data).backward()
    _loss(model, data).backward()
    _loss(plain, graph).backward()
    _loss(plain, graph).backward()
    _assert_same(_grads(model), _grads(plain))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert next(model.parameters()) is next(module.parameters())
    model.eval()
    assert not module.training


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
    if world_size is None:
        outcomes = [_built(kwargs, make)]
    else:
        outcomes = run_ranks(_built, world_size, kwargs, make)
    assert_all_raise(outcomes, 'ValueError', words)


def test_an_unknown_option_is_an_error():
    outcomes = run_ranks(_built, 2, {'overlap': True}, 'net')
    assert_all_raise(outcomes, 'TypeError', 'overlap')


@on_ranks(2, 0)
def test_a_wrapped_model():
    ours = DistributedDataParallel(DistributedDataParallel(make_model(), mode='one_shot'))
    assert [m.sar_options.mode for m in ours.modules() if isinstance(m, SARConv)] == [
        'one_shot'
    ] * 2
