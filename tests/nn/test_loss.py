"""mean_of_batches: values of all rows, and gradients of as many equal losses as ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from ranks import run_ranks
from small_graphs import assert_close
from torch import Tensor

from pyg_sar.loader import mean_of_batches

COUNTS = [[9], [3, 8], [5, 0, 6], [1, 7, 2, 1]]
"""Rows of every rank."""

MASKS: dict[str, Callable[[int], Tensor] | None] = {
    'all': None,
    'half': lambda n: torch.arange(n) % 5 % 2 == 0,
    'none of the first rank': lambda n: torch.arange(n) >= n - 2,
    'one': lambda n: torch.arange(n) == n // 2,
}


def _values(num_rows: int, trailing: tuple[int, ...] = ()) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, *trailing, generator=generator, dtype=torch.float64)


def _own(values: Tensor, counts: list[int]) -> Tensor:
    return values.split(counts)[dist.get_rank()]


def _mean(counts: list[int], values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    own = _own(values, counts).clone().requires_grad_()
    out = mean_of_batches(own if mask is None else own[_own(mask, counts)])
    (out * 3).backward()
    return out.detach(), own.grad


def _check(counts: list[int], values: Tensor, mask: Tensor | None = None) -> None:
    leaf = values.clone().requires_grad_()
    want = (leaf if mask is None else leaf[mask]).mean()
    (want * 3 * len(counts)).backward()
    results = run_ranks(_mean, len(counts), counts, values, mask)
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
    results = run_ranks(_mean, 3, [4, 5, 3], values, mask)
    assert all(bool(found.isnan()) for found, _ in results)


def _metric(counts: list[int], values: Tensor, mask: Tensor) -> tuple[Tensor, bool]:
    out = mean_of_batches(_own(values, counts)[_own(mask, counts)])
    return out, out.requires_grad


@pytest.mark.parametrize('dtype', [torch.bool, torch.int64, torch.uint8])
def test_metrics_of_other_types(dtype):
    mask = torch.arange(12) % 3 < 2
    values = (torch.arange(12) % 3).to(dtype)
    want = values[mask].float().mean()
    for found, requires_grad in run_ranks(_metric, 3, [4, 5, 3], values, mask):
        assert_close(found, want, tolerance=1e-6)
        assert not requires_grad


def _half(num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values = torch.full((num_rows,), 0.25, dtype=dtype, requires_grad=True)
    out = mean_of_batches(values)
    out.backward()
    return out.detach(), values.grad[:3]


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('world_size', [None, 2])
def test_counts_beyond_half_precision(dtype, world_size):
    """100,000 rows: more than float16 holds, and no whole number in bfloat16."""
    num_rows = 100_000
    results = (
        [_half(num_rows, dtype)] if world_size is None else run_ranks(_half, 2, num_rows, dtype)
    )
    want = torch.tensor(0.25, dtype=dtype)
    share = torch.full((3,), 1 / num_rows, dtype=torch.float64)  # of as many losses as ranks
    for found, grad in results:
        assert torch.equal(found, want)
        torch.testing.assert_close(grad.double(), share, rtol=0.02, atol=0)


def _no_rows(needs: list[bool]) -> list[Any]:
    values = torch.zeros(0, 2, requires_grad=needs[dist.get_rank()])
    mean = mean_of_batches(values)
    if mean.requires_grad:
        mean.backward()
    return [mean.detach(), mean.requires_grad, values.grad]


@pytest.mark.parametrize('needs', [[True] * 3, [False, True, False], [False] * 3], ids=str)
def test_no_rows_on_any_rank(needs):
    """The mean is 0, and all ranks can go back if one can."""
    for (mean, has_history, grad), needs_it in zip(
        run_ranks(_no_rows, 3, needs), needs, strict=True
    ):
        assert torch.equal(mean, torch.zeros(()))
        assert has_history is any(needs)
        assert (grad is None) is not needs_it
        assert grad is None or grad.shape == (0, 2)


def test_one_process() -> None:
    values, mask = _values(9).requires_grad_(), torch.arange(9) % 2 == 0
    out = mean_of_batches(values[mask])
    assert_close(out.detach(), values[mask].mean().detach())
    (grad,) = torch.autograd.grad(out, values)
    (want,) = torch.autograd.grad(values[mask].mean(), values)
    assert_close(grad, want)
    assert mean_of_batches(values[:0]) == 0


@on_ranks(3, 0)
def test_values_without_gradient_on_one_rank():
    """It takes part in backward all the same."""
    takes = dist.get_rank() > 0
    values = torch.ones(3, dtype=torch.float64, requires_grad=takes)
    loss = mean_of_batches(values)
    assert loss.requires_grad
    loss.backward()
    with torch.no_grad():
        assert not mean_of_batches(values).requires_grad
    assert (values.grad is not None) == takes
    if takes:
        assert_close(values.grad, torch.full((3,), 3 / 9, dtype=torch.float64))
