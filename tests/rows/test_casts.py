"""A cast stands for what is cast; what torch asks of two tensors is asked of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from rows_by_hand import as_rows, sharding_of
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import world_size

N, WIDTH = 9, 3
COUNTS = {1: [N], 3: [3, 0, 6]}

PROGRAMS: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    'numbers of all rows': lambda x, y, w: x * torch.arange(N).type_as(x).view(-1, 1),
    'a mask of all rows': lambda x, y, w: x * (torch.arange(N) % 2 == 0).to(x).view(-1, 1),
    'a parameter': lambda x, y, w: x * w.type_as(x),
    'the sum of a parameter': lambda x, y, w: x * w.type_as(x).sum(),
    'the mean of a parameter': lambda x, y, w: x / w.to(x).mean(),
    'the norm of a parameter': lambda x, y, w: x / w.to(x).norm(),
    'as many numbers as a rank has': lambda x, y, w: x * torch.ones(3).to(x).sum(),
    'the largest': lambda x, y, w: x * torch.tensor([1, 5, 2]).type_as(x).max(),
    'one number': lambda x, y, w: x + torch.tensor(2).type_as(x),
    'a matrix': lambda x, y, w: x @ torch.eye(WIDTH).type_as(x),
    'a softmax': lambda x, y, w: x * torch.softmax(w.type_as(y.double()), 0),
    'labels of another sharding': lambda x, y, w: x[y > 1].sum() * y.type_as(x[y > 1]).sum(),
    'rows as a parameter': lambda x, y, w: y.type_as(w).mean() * x,
    'rows as rows of more dimensions': lambda x, y, w: y.to(x).unsqueeze(1) * x,
    'a slice of rows': lambda x, y, w: x[:2].type_as(y.double()).sum() * x,
    'rows turned': lambda x, y, w: x.t().type_as(y.double()).t() * x,
    'ids': lambda x, y, w: x[torch.tensor([0.0, 4.0]).type_as(y)].sum() * x,
    'a new tensor': lambda x, y, w: x * x.new_tensor([1, 2, 3]),
    'new zeros': lambda x, y, w: x + w.new_ones(3),
    'expanded': lambda x, y, w: w.expand_as(x) * x,
    'expanded numbers of all rows': lambda x, y, w: torch.arange(N).view(-1, 1).expand_as(x) * x,
    'viewed': lambda x, y, w: torch.arange(N * WIDTH).view_as(x) * x,
    'reshaped': lambda x, y, w: torch.arange(N * WIDTH).reshape_as(x) + x,
    'copied from': lambda x, y, w: torch.zeros(N, WIDTH).double().copy_(x.detach()) * x,
    'copied to': lambda x, y, w: torch.zeros_like(x).copy_(w) * x,
    'which type': lambda x, y, w: x.to(torch.result_type(x, y)),
    'all true': lambda x, y, w: x * torch._is_all_true(y >= 0) + torch._is_all_true(y > 0),
    'any true': lambda x, y, w: x * torch._is_any_true(y == 3) + torch._is_any_true(y > 9),
    'equal': lambda x, y, w: x * torch.equal(y, torch.arange(N) % 4),
    'all close': lambda x, y, w: x * torch.allclose(x, x + 1e-12) + torch.allclose(x, x * 2),
    'a distribution': lambda x, y, w: torch.distributions.Normal(x, w.exp()).log_prob(x * 2),
    'a distribution of classes': lambda x, y, w: torch.distributions.Categorical(
        logits=x
    ).entropy(),
    'probabilities': lambda x, y, w: torch.distributions.Bernoulli(x.sigmoid()).log_prob(
        (x > 0).to(x)
    ),
}


def _results(whole: bool) -> dict[str, list[Tensor]]:
    out = {}
    for name, program in PROGRAMS.items():
        x = torch.linspace(-1, 2, N * WIDTH, dtype=torch.float64).view(N, WIDTH)
        y = torch.arange(N) % 4
        if not whole:
            sharding = sharding_of(COUNTS[world_size()])
            x, y = as_rows(x, sharding), as_rows(y, sharding)
        x, w = x.requires_grad_(), torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
        made = program(x, y, w)
        made.square().sum().backward()
        grads = [x.grad] if w.grad is None else [x.grad, w.grad]
        out[name] = [pyg_sar.gather(each).detach() for each in (made, *grads)]
    return out


@pytest.mark.parametrize('num_ranks', COUNTS)
def test_of_the_whole(num_ranks: int) -> None:
    expected = _results(whole=True)
    for found in run_as_threads(_results, num_ranks, whole=False):
        for name, values in expected.items():
            assert len(found[name]) == len(values), name
            for value, right in zip(found[name], values, strict=True):
                torch.testing.assert_close(value, right, rtol=1e-6, atol=1e-6, msg=name)
                assert value.dtype == right.dtype, name
