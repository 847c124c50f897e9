"""Sums over rows of half precision are added up as float32, as torch does it, and rounded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from expressions import expressions
from ranks import run_as_threads
from rows_by_hand import as_rows, sharding_of

import pyg_sar
from pyg_sar.comm.ranks import world_size

N = 90_000
"""More rows than the largest number of float16."""

COUNTS = {2: [30_000, 60_000], 3: [30_000, 0, 60_000]}
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

FUNCTIONS = """
x.mean(); x.mean(0, keepdim=True); (x - 1).sum(0) / 100; x.sum(dtype=torch.float32) / N; x.std(0)
x.var(); torch.var_mean(x, 0); x.norm(); x.norm(dim=0); (x * 100).norm(dim=0) / 100; x.nanmean(0)
torch.linalg.vector_norm(x, 3, dim=0); x.softmax(0) * N; x.log_softmax(0); x.amax(0)
x.count_nonzero(0); F.mse_loss(x, -x); F.l1_loss(x, -x)
F.binary_cross_entropy_with_logits(x, (x > 1).to(x.dtype))
F.cross_entropy(x, (x[:, 0] > 1).long(), reduction='none').mean()
"""
NAMES = {'F': F, 'N': N, 'torch': torch}


def _results(is_cut: bool, dtype: torch.dtype, kind: torch.dtype) -> dict[str, Any]:
    """What a rank or one process finds; numbers of `dtype` are computed as `kind`."""
    numbers = 1 + torch.randn(N, 3, generator=torch.Generator().manual_seed(0)) / 4
    whole = numbers.to(dtype).to(kind)
    x = as_rows(whole, sharding_of(COUNTS[world_size()])) if is_cut else whole
    out = {}
    for name in expressions(FUNCTIONS):
        leaf = x.detach().clone().requires_grad_()
        made = eval(name, NAMES | {'x': leaf})
        every = list(made) if isinstance(made, tuple) else [made]
        if every[0].requires_grad:
            sum(each.to(WIDER.get(kind, kind)).square().mean() for each in every).backward()
            every.append(leaf.grad)
        out[name] = [pyg_sar.gather(each).detach() for each in every]
    return out


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('num_ranks', [2, 3])  # one process has torch's own
def test_sums_are_rounded_once(num_ranks: int, dtype: torch.dtype) -> None:
    exact = _results(False, dtype, torch.float64)
    plain = _results(False, dtype, dtype)
    for found in run_as_threads(_results, num_ranks, True, dtype, dtype):
        for name, values in found.items():
            for value, right, torchs in zip(values, exact[name], plain[name], strict=True):
                assert value.dtype == torchs.dtype, name
                step = torch.finfo(dtype).eps
                allowed = 4 * step * (float(right.abs().max()) + torch.finfo(dtype).tiny)
                torch.testing.assert_close(
                    value.to(right.dtype), right, rtol=0, atol=allowed, msg=name
                )
