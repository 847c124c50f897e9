"""Rows read, added and written by an index, narrow ones as wider numbers, against torch."""

from __future__ import annotations

import pytest
import torch

from pyg_sar.shard.index_rows import add_rows_at, add_runs_at, rows_at, write_rows_at

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
SHAPES = [(), (1,), (2,), (3,), (4,), (2, 2), (4, 1), (5,), (8,), (0,)]


def _values(num_rows: int, shape: tuple[int, ...], dtype: torch.dtype, offset: int):
    """Rows that begin `offset` numbers behind the beginning of their memory."""
    count = num_rows * torch.Size(shape).numel()
    flat = torch.arange(count + offset) * 7 % 23 - 11  # whole numbers: sums are exact
    return flat.to(dtype)[offset:].view(num_rows, *shape)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize('offset', [0, 1, 2])
@pytest.mark.parametrize('num_rows', [0, 6])
def test_rows(dtype, shape, offset, num_rows):
    index = torch.tensor([5, 0, 0, 3, 5, 1])[:num_rows]
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


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('shape', [(), (4,), (3, 8), (0,)], ids=str)
@pytest.mark.parametrize('index', [[], [1], [0, 0, 2, 2, 2, 5, 5], [0, 1, 2, 3, 4, 5]], ids=str)
def test_runs(dtype, shape, index):
    """More and fewer edges than rows, rows without an edge, wide rows and narrow ones."""
    values, index = _values(6, shape, dtype, 0), torch.tensor(index, dtype=torch.int64)
    rows = _values(index.numel(), shape, dtype, 1)
    want = values.index_add(0, index, rows)
    add_runs_at(values, index, rows)
    assert torch.equal(values, want)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
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
