"""Sums over the edges of a block: embedding_bag against index_add and a dense product."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import assert_close
from torch import Tensor

from pyg_sar.ops import spmm
from pyg_sar.ops.spmm import add_segment_sums
from pyg_sar.shard.csr import make_segments

TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-5}


def _edges(num_rows: int, num_cols: int, num_edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(num_rows, (num_edges,), generator=generator)
    cols = torch.randint(num_cols, (num_edges,), generator=generator)
    return rows, cols


def _dense_sum(
    rows: Tensor, cols: Tensor, num_rows: int, values: Tensor, weight: Tensor | None
) -> Tensor:
    """A matrix product in float64, with repeated edges as larger entries."""
    matrix = torch.zeros(num_rows, values.size(0), dtype=torch.float64)
    entries = torch.ones(rows.numel()) if weight is None else weight
    matrix.index_put_((rows, cols), entries.double(), accumulate=True)
    return matrix @ values.double()


# Name: rows, columns, edges.
BLOCKS = {
    'every row taken': (4, 7, 60),
    'empty rows': (50, 7, 20),
    'repeated edges': (3, 2, 40),
    'one edge': (5, 5, 1),
    'no edges': (5, 3, 0),
    'no rows': (0, 3, 0),
    'no rows and columns': (0, 0, 0),
}


@pytest.mark.parametrize('num_features', [1, 3, 32])
@pytest.mark.parametrize('has_weight', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('is_sorted', [False, True])
@pytest.mark.parametrize('block', BLOCKS)
def test_a_matrix_product(block, is_sorted, dtype, has_weight, num_features):
    num_rows, num_cols, num_edges = BLOCKS[block]
    rows, cols = (
        _edges(num_rows, num_cols, num_edges) if num_edges else (torch.empty(0).long(),) * 2
    )
    if is_sorted:
        rows = rows.sort().values
    values = torch.randn(num_cols, num_features, dtype=dtype)
    weight = torch.randn(num_edges, dtype=dtype) if has_weight else None
    segments = make_segments(rows, cols, num_rows, is_sorted=is_sorted)

    want = _dense_sum(rows, cols, num_rows, values, weight).to(dtype)
    out = torch.full((num_rows, num_features), float('nan'), dtype=dtype)
    assert add_segment_sums(out, values, segments, weight, replace=True) is out
    assert_close(out, want, tolerance=TOLERANCE[dtype])

    before = torch.randn(num_rows, num_features, dtype=dtype)
    out = add_segment_sums(before.clone(), values, segments, weight)
    assert_close(out, before + want, tolerance=TOLERANCE[dtype])


def _sums(
    rows: Tensor, cols: Tensor, num_rows: int, values: Tensor, weight: Tensor | None = None
) -> Tensor:
    out = values.new_zeros(num_rows, values.size(1))
    return add_segment_sums(out, values, make_segments(rows, cols, num_rows), weight)


@pytest.mark.parametrize('chunk_bytes', [1, 100, 1000])
@pytest.mark.parametrize('num_rows', [7, 60, 300])
@pytest.mark.parametrize('has_weight', [False, True])
@pytest.mark.parametrize('replace', [False, True])
def test_chunks(monkeypatch, chunk_bytes, num_rows, has_weight, replace):
    """Segments in chunks of one, of a few and of many; with empty rows: none, a few, most."""
    rows, cols = _edges(num_rows, 11, 90)
    values = torch.randn(11, 5, dtype=torch.float64)
    weight = torch.randn(90, dtype=torch.float64) if has_weight else None
    segments = make_segments(rows, cols, num_rows)
    assert (segments.keys is None) == (num_rows < 300)
    monkeypatch.setattr(spmm, '_SEGMENT_BYTES', chunk_bytes)
    before = torch.randn(num_rows, 5, dtype=torch.float64)
    out = add_segment_sums(before.clone(), values, segments, weight, replace=replace)
    sums = _dense_sum(rows, cols, num_rows, values, weight)
    assert_close(out, sums if replace else before + sums)
    assert_close(spmm.segment_sums(values, segments, weight), sums)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_block(data):
    num_rows = data.draw(st.integers(1, 6))
    num_cols = data.draw(st.integers(1, 6))
    pairs = st.tuples(st.integers(0, num_rows - 1), st.integers(0, num_cols - 1))
    edges = data.draw(st.lists(pairs, max_size=25))
    rows = torch.tensor([r for r, _ in edges], dtype=torch.int64)
    cols = torch.tensor([c for _, c in edges], dtype=torch.int64)
    values = torch.randn(num_cols, 2, dtype=torch.float64)
    weight = torch.randn(len(edges), dtype=torch.float64)
    got = _sums(rows, cols, num_rows, values, weight)
    assert_close(got, _dense_sum(rows, cols, num_rows, values, weight))


@pytest.mark.parametrize('dtype', [torch.int64, torch.int32, torch.int16])
def test_integers_take_the_fallback(dtype):
    rows, cols = _edges(9, 4, 30)
    values = torch.randint(-50, 50, (4, 3), dtype=dtype)
    got = _sums(rows, cols, 9, values)
    assert got.dtype == dtype
    assert torch.equal(got.double(), _dense_sum(rows, cols, 9, values, None))


@pytest.mark.parametrize('has_weight', [False, True])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(dtype, has_weight):
    """Small integers, whose sums are exact in 8 bits of mantissa."""
    rows, cols = _edges(9, 4, 30)
    values = torch.randint(-2, 3, (4, 3)).to(dtype)
    weight = torch.randint(1, 3, (30,)).to(dtype) if has_weight else None
    got = _sums(rows, cols, 9, values, weight)
    assert got.dtype == dtype
    assert torch.equal(got.double(), _dense_sum(rows, cols, 9, values, weight))


def test_weights_of_another_dtype():
    rows, cols = _edges(9, 4, 30)
    values, weight = torch.randn(4, 3), torch.rand(30, dtype=torch.float64)
    got = _sums(rows, cols, 9, values, weight)
    want = _dense_sum(rows, cols, 9, values, weight.float())
    assert_close(got, want.float(), tolerance=1e-5)


def test_values_that_are_not_contiguous():
    rows, cols = _edges(9, 4, 30)
    values = torch.randn(3, 4, dtype=torch.float64).t()
    weight = torch.randn(60, dtype=torch.float64)[::2]
    got = _sums(rows, cols, 9, values, weight)
    assert_close(got, _dense_sum(rows, cols, 9, values, weight))


def test_no_features():
    rows, cols = _edges(9, 4, 30)
    assert _sums(rows, cols, 9, torch.empty(4, 0)).shape == (9, 0)
