"""What DistributedDataParallel compares between the ranks, and refuses on all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_model import make_model
from on_ranks import on_ranks
from ranks import run_ranks
from small_graphs import assert_all_raise, assert_close, attempt, small_graph
from torch import Tensor
from torch_geometric.nn import LGConv

import pyg_sar
from pyg_sar import DistributedDataParallel


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
