"""Numbers drawn like rows are those of one process, in every layout and on ranks of few rows."""

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

N = 24
COUNTS = {1: [N], 3: [9, 1, 14]}

VIEWS: dict[str, Callable[[Any], Any]] = {
    'as it is': lambda x: x,
    'a column': lambda x: x[:, 1],
    'transposed': lambda x: x.t(),
    'every other column': lambda x: x[:, ::2],
    'one of them as a matrix': lambda x: x[:, 2:3],
    'chosen rows, one of which is alone': lambda x: x[x[:, 0] < 10][:, 1],
    'chosen rows transposed': lambda x: x[(x[:, 0] > 8) & (x[:, 0] < 12)].t(),
    'with a dimension more': lambda x: x.unsqueeze(1).transpose(1, 2),
}

DRAWS: dict[str, Callable[[Any], Any]] = {
    'rand_like': torch.rand_like,
    'randn_like': torch.randn_like,
    'randint_like': lambda x: torch.randint_like(x, 50),
    'normal_': lambda x: x.clone().normal_(),
    'normal_ of the view': lambda x: x.normal_(1, 2),
    'uniform_ of the view': lambda x: x.uniform_(),
}


def _drawn(whole: Tensor | None) -> dict[tuple[str, str], Tensor]:
    torch.manual_seed(0)
    out = {}
    for view, of in VIEWS.items():
        for name, draw in DRAWS.items():
            x = torch.arange(float(N)).view(-1, 1) + torch.zeros(N, 5)
            if whole is None:
                x = as_rows(x, sharding_of(COUNTS[world_size()]))
            out[view, name] = pyg_sar.gather(draw(of(x)))
    return out


@pytest.mark.parametrize('num_ranks', [1, 3])
def test_draws_are_those_of_one_process(num_ranks: int) -> None:
    expected = _drawn(torch.ones(()))
    for found in run_as_threads(_drawn, num_ranks, None):
        for key, value in expected.items():
            assert torch.equal(found[key], value), key
