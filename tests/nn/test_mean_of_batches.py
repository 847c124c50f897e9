"""Over all ranks' batches, which are unequal or empty: the mean with its gradient, and all rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from alike import assert_bits
from on_ranks import on_ranks, on_threads
from ranks import run_as_threads
from small_graphs import assert_close
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.loader import gather_batches, mean_of_batches

COUNTS = [[9], [3, 8], [5, 0, 6], [1, 7, 2, 1]]
"""Rows of every rank."""
SIZES = 3, 0, 5

MASKS: dict[str, Callable[[int], Tensor] | None] = {
    'all': None,
    'half': lambda n: torch.arange(n) % 5 % 2 == 0,
    'none of the first rank': lambda n: torch.arange(n) >= n - 2,
    'one': lambda n: torch.arange(n) == n // 2,
}


def _values(num_rows: int, trailing: tuple[int, ...] = ()) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, *trailing, generator=generator, dtype=torch.float64)


def _mean(counts: list[int], values: Tensor, mask: Tensor | None) -> tuple[Tensor, Any]:
    own = values.split(counts)[rank()].clone()
    own = own.requires_grad_() if own.is_floating_point() else own
    out = mean_of_batches(own if mask is None else own[mask.split(counts)[rank()]])
    assert out.requires_grad == own.is_floating_point()
    if out.requires_grad:
        (out * 3).backward()
    return out.detach(), own.grad


def _check(counts: list[int], values: Tensor, mask: Tensor | None = None) -> None:
    """Gradients of as many equal losses as ranks."""
    leaf = values.clone().requires_grad_()
    want = (leaf if mask is None else leaf[mask]).mean()
    (want * 3 * len(counts)).backward()
    args = counts, values, mask
    one = len(counts) == 1  # this process, without any ranks
    results = [_mean(*args)] if one else run_as_threads(_mean, len(counts), *args)
    tolerance = 1e-12 if values.dtype.itemsize > 4 else 1e-6
    for found, _ in results:
        assert found.shape == ()
        assert_close(found, want.detach(), tolerance=tolerance)
        assert torch.equal(found, results[0][0])
    assert_close(torch.cat([grad for _, grad in results]), leaf.grad, tolerance=tolerance)


@pytest.mark.parametrize('counts', COUNTS, ids=len)
def test_mean_of_all_ranks(counts: list[int]) -> None:
    """Unequal parts have unequal shares; what is outside of the mask may be anything."""
    for make, trailing in product(MASKS.values(), [(), (3,), (2, 2)]):
        values = _values(sum(counts), trailing)
        mask = None if make is None else make(sum(counts))
        _check(counts, values, mask)
        for bad in () if mask is None or trailing else (float('nan'), float('inf')):
            values[~mask] = bad
            _check(counts, values, mask)
    _check(counts, _values(sum(counts)).float())


def test_nan_inside_the_mask_reaches_everyone() -> None:
    values, mask = _values(12), torch.arange(12) < 4
    values[2] = float('nan')
    results = run_as_threads(_mean, 3, [4, 5, 3], values, mask)
    assert all(bool(found.isnan()) for found, _ in results)


@pytest.mark.parametrize('dtype', [torch.bool, torch.int64, torch.uint8])
def test_metrics_of_other_types(dtype):
    mask = torch.arange(12) % 3 < 2
    values = (torch.arange(12) % 3).to(dtype)
    for found, _ in run_as_threads(_mean, 3, [4, 5, 3], values, mask):
        assert_close(found, values[mask].float().mean(), tolerance=1e-6)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('world_size', [1, 2])
@on_ranks(1, 0, by='threads')
def test_counts_beyond_half_precision(dtype, world_size):
    """100,000 rows: more than float16 holds, and no whole number in bfloat16."""
    values = torch.full((100_000,), 0.25, dtype=dtype, requires_grad=True)
    out = mean_of_batches(values)
    out.backward()
    assert torch.equal(out.detach(), torch.tensor(0.25, dtype=dtype))
    share = torch.full((3,), 1e-5, dtype=torch.float64)  # of as many losses as ranks
    torch.testing.assert_close(values.grad[:3].double(), share, rtol=0.02, atol=0)


@pytest.mark.parametrize('needs', [[True] * 3, [False, True, False], [False] * 3], ids=str)
@on_threads(3)
def test_no_rows_on_any_rank(needs):
    """The mean is 0, and all ranks can go back if one can."""
    values = torch.zeros(0, 2, requires_grad=needs[rank()])
    mean = mean_of_batches(values)
    assert torch.equal(mean.detach(), torch.zeros(()))
    assert mean.requires_grad is any(needs)
    if mean.requires_grad:
        mean.backward()
    assert (values.grad is None) is not needs[rank()]
    assert values.grad is None or values.grad.shape == (0, 2)


@on_threads(3)
def test_values_without_gradient_on_one_rank():
    """It takes part in backward all the same."""
    takes = rank() > 0
    values = torch.ones(3, dtype=torch.float64, requires_grad=takes)
    loss = mean_of_batches(values)
    assert loss.requires_grad
    loss.backward()
    with torch.no_grad():
        assert not mean_of_batches(values).requires_grad
    assert (values.grad is not None) == takes
    if takes:
        assert_close(values.grad, torch.full((3,), 3 / 9, dtype=torch.float64))


def _gathered(values: list[Tensor]) -> list[Tensor]:
    own = (torch.split(each, SIZES)[rank()] for each in values)
    return [gather_batches(each.requires_grad_(each.is_complex())) for each in own]


def test_all_rows_of_batches() -> None:
    rows = torch.randn(sum(SIZES), 2, dtype=torch.float64)
    values = [rows, rows[:, 0] > 0, rows[:, :1].bfloat16(), rows.long(), rows.cfloat(), rows[:, :0]]
    for found in run_as_threads(_gathered, 3, values):
        assert not any(each.requires_grad for each in found)
        assert_bits(found, values)


@on_ranks(2, by='threads')
def test_what_is_no_batch_is_refused(data):
    for function, value, words in (
        (mean_of_batches, data.x, r'losses\.mean\(\)'),
        (gather_batches, data.x, r'pyg_sar\.gather\(x\)'),
        (pyg_sar.loader.gather_batches, torch.ones(()), r'torch\.cat'),
    ):
        with pytest.raises(ValueError, match=words):
            function(value)
