"""Over all ranks' batches, which are unequal or empty: the mean with its gradient, and all rows."""

from __future__ import annotations

import pytest
import torch
from on_ranks import on_ranks, on_threads
from ranks import run_as_threads
from small_graphs import assert_close
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank

SIZES = 3, 0, 5


def _of_ranks(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    own = torch.split(values, SIZES)[rank()].clone().requires_grad_()
    mean = pyg_sar.loader.mean_of_batches(own.sin())
    mean.backward()
    assert own.grad is not None
    return mean.detach(), own.grad, pyg_sar.loader.mean_of_batches(own.detach() > 0)


def test_as_of_one_batch_of_all_rows() -> None:
    values = torch.randn(sum(SIZES), 2, dtype=torch.float64)
    whole = values.clone().requires_grad_()
    mean = whole.sin().mean()
    mean.backward()
    results = run_as_threads(_of_ranks, 3, values)
    for found, _, share in results:
        assert_close(found, mean.detach())
        assert share == pytest.approx((values > 0).float().mean().item())
    # Of the sum of the ranks' losses, whose mean a DistributedDataParallel takes.
    assert_close(torch.cat([grad for _, grad, _ in results]) / 3, whole.grad)


@on_threads(2)
def test_of_no_rows_it_is_0():
    assert pyg_sar.loader.mean_of_batches(torch.ones(0, 2)) == 0


@on_ranks(2, by='threads')
def test_rows_of_the_whole_graph_are_refused(data):
    with pytest.raises(ValueError, match=r'losses\.mean\(\)'):
        pyg_sar.loader.mean_of_batches(data.x)


def _gathered(values: list[Tensor]) -> list[Tensor]:
    return [
        pyg_sar.loader.gather_batches(
            torch.split(each, SIZES)[rank()].requires_grad_(each.is_complex())
        )
        for each in values
    ]


def test_all_rows_of_batches() -> None:
    rows = torch.randn(sum(SIZES), 2, dtype=torch.float64)
    values = [rows, rows[:, 0] > 0, rows[:, :1].bfloat16(), rows.long(), rows.cfloat(), rows[:, :0]]
    for found in run_as_threads(_gathered, 3, values):
        assert not any(each.requires_grad for each in found)
        for each, expected in zip(found, values, strict=True):
            assert torch.equal(each, expected)
            assert each.dtype == expected.dtype


@on_ranks(2, by='threads')
def test_batches_that_are_none_are_refused(data):
    with pytest.raises(ValueError, match=r'pyg_sar\.gather\(x\)'):
        pyg_sar.loader.gather_batches(data.x)
    with pytest.raises(ValueError, match=r'torch\.cat'):
        pyg_sar.loader.gather_batches(torch.ones(()))
