"""Rows read, added and written by an index, narrow ones as wider numbers, against torch."""

from __future__ import annotations

import pytest
import torch
from pairs import pairs

from pyg_sar.shard.index_rows import add_rows_at, add_runs_at, rows_at, write_rows_at

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
SHAPES = [(), (1,), (2,), (3,), (4,), (2, 2), (4, 1), (5,), (8,), (16,), (17,), (0,)]
KINDS = [torch.int64, torch.int32]


def _values(num_rows: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int):
    """Rows that begin `offset` numbers behind the beginning of their memory."""
    count = num_rows * torch.Size(shape).numel()
    flat = torch.arange(count + offset) * 7 % 23 - 11  # whole numbers: sums are exact
    return flat.to(dtype)[offset:].view(num_rows, *shape)


@pairs(shape=SHAPES, dtype=DTYPES, offset=[0, 1, 2], num_rows=[6, 0], kind=KINDS)
def test_rows(shape, dtype, offset, num_rows, kind):
    index = torch.tensor([5, 0, 0, 3, 5, 1])[:num_rows].to(kind)
    values = _values(num_rows, shape, dtype, offset)
    got = rows_at(values, index)
    assert got.is_contiguous()
    assert torch.equal(got, values.index_select(0, index))
    rows = _values(index.numel(), shape, dtype, 2 - offset)
    want = values.index_add(0, index, rows)
    add_rows_at(values, index, rows)
    assert torch.equal(values, want)
    places = torch.tensor([4, 0, 2])[:num_rows]
    want = values.index_copy(0, places, rows[: places.numel()])
    write_rows_at(values, places, rows[: places.numel()])
    assert torch.equal(values, want)
    write_rows_at(values, places[:0], rows[:0])
    assert torch.equal(values, want)


@pairs(shape=SHAPES[1:-1], dtype=DTYPES[:2], kind=KINDS)
def test_sums_are_made_in_the_order_of_the_index(shape, dtype, kind):
    index = torch.randint(50, (200,)).to(kind)
    rows, values = torch.randn(200, *shape, dtype=dtype), torch.randn(50, *shape, dtype=dtype)
    want = values.clone()
    for i, row in zip(index.tolist(), rows, strict=True):
        want[i] += row
    add_rows_at(values, index, rows)
    assert torch.equal(values, want)


@pairs(
    dtype=DTYPES,
    shape=[(), (4,), (3, 8), (0,)],
    index=[(), (1,), (0, 0, 2, 2, 2, 5, 5), (0, 1, 2, 3, 4, 5)],
)
def test_runs(dtype, shape, index):
    """More and fewer edges than rows, rows without an edge, wide rows and narrow ones."""
    values, index = _values(6, shape, dtype, 0), torch.tensor(index, dtype=torch.int64)
    rows = _values(index.numel(), shape, dtype, 1)
    want = values.index_add(0, index, rows)
    add_runs_at(values, index, rows)
    assert torch.equal(values, want)


@pytest.mark.parametrize('dtype', DTYPES)
def test_rows_of_views(dtype):
    """Every second row, a column, and a row that stands for all."""
    index = torch.tensor([2, 0, 2])
    values = _values(6, (4,), dtype, 0)
    for view in (values[::2], values[:, 1:3], values.t(), values[:1].expand(6, 4)):
        assert torch.equal(rows_at(view, index), view.index_select(0, index))
    for view in (values[::2], values[:, 1:3], values.t()):
        rows = _values(view.size(1), (3,), dtype, 0).t()
        want = view.index_add(0, index, rows)
        add_rows_at(view, index, rows)
        assert torch.equal(view, want)


def test_not_a_number_stays_what_it_is():
    """Rows are copied bit by bit."""
    values = torch.tensor([[float('nan'), 1.0, -0.0, float('inf')], [0.0, 1.0, 2.0, 3.0]])
    got = rows_at(values, torch.tensor([0, 1]))
    assert torch.equal(got.view(torch.int32), values.view(torch.int32))
