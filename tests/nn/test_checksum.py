"""The checksum of a tensor sees what torch does not count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_sar.utils.tensor_state import checksum

NUM_ROWS = 1000
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def _two_rows_swapped(x: Tensor) -> None:
    other = int((x != x[5]).any(1).nonzero()[20])
    x.data.index_copy_(0, torch.tensor([5, other]), x[[other, 5]])


CHANGES: dict[str, Callable[[Tensor], object]] = {
    'scaled': lambda x: x.data.mul_(2),
    'by NumPy': lambda x: np.copyto(x.numpy(), x.numpy()[::-1].copy()),
    'a column shuffled': lambda x: np.random.default_rng(1).shuffle(x.numpy()[:, 3]),
    'columns reversed': lambda x: x.data.copy_(x.data.flip(1)),
    'halves swapped': lambda x: x.data.copy_(x.data.roll(NUM_ROWS // 2, 0)),
    'rolled by a 64th': lambda x: x.data.copy_(x.data.roll(NUM_ROWS // 64, 0)),
    'two rows swapped': _two_rows_swapped,
    'another memory': lambda x: setattr(x, 'data', x.data + 1),
}


@pytest.mark.parametrize('name', CHANGES)
@pytest.mark.parametrize('width', [8, 64, 9])
@pytest.mark.parametrize('is_one_hot', [False, True])
def test_changes_that_torch_does_not_count(name: str, width: int, is_one_hot: bool) -> None:
    x = torch.randn(NUM_ROWS, width)
    if is_one_hot:
        x = torch.eye(width)[torch.randint(width, (NUM_ROWS,))]
    before, version = checksum(x), x._version
    assert checksum(x) == before == checksum(x.clone())
    CHANGES[name](x)
    assert x._version == version
    assert checksum(x) != before


@pytest.mark.parametrize('num_rows', [2, 13, 37, 400, 1031])
@pytest.mark.parametrize('width', [1, 3, 6])
def test_rows_in_another_order(num_rows: int, width: int) -> None:
    """Also of few rows."""
    x = torch.randn(num_rows, width)
    for other in (x.flip(0), x.roll(1, 0), torch.cat([x[1:2], x[:1], x[2:]])):
        assert checksum(other) != checksum(x)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', [(0,), (1,), (3,), (7, 5), (200, 3)])
def test_every_element_counts(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(dtype)
    before = checksum(x)
    for i in range(x.numel()):
        changed = x.clone()
        changed.view(-1)[i] += 1
        assert checksum(changed) != before


@pytest.mark.parametrize('shape', [(1,), (2,), (3,)])
def test_small_tensors_do_not_meet(shape: tuple[int, ...]) -> None:
    """All pairs of them: (a, b) once had the checksum of (b + 1, a - 1)."""
    tensors = torch.cartesian_prod(*[torch.arange(-6, 7)] * shape[0]).view(-1, *shape)
    assert len({checksum(tensor) for tensor in tensors}) == len(tensors)


def test_views_are_read_as_they_are() -> None:
    x = torch.randn(40, 6)
    assert checksum(x[1:, 1:4]) == checksum(x[1:, 1:4].clone())
    assert checksum(x[:, 1]) == checksum(x[:, 1].clone())
    assert checksum(x.view(-1)[1:]) == checksum(x.view(-1)[1:].clone())
