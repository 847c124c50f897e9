"""Sums and dot products over the edges of a block, against dense matrices."""

from __future__ import annotations

from itertools import product
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import covering, pairs
from small_graphs import assert_close
from torch import Tensor

from pyg_sar.ops import spmm, weighted_loops
from pyg_sar.ops.spmm import (
    _dots_by_gather,
    _dots_by_sampling,
    add_by_index_add,
    add_segment_sums,
    add_weighted_sums,
    edge_dots,
)
from pyg_sar.shard.csr import make_segments

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-5}
WITHOUT_HEADS = {torch.float64: 1e-14, torch.float32: 1e-5}


SHAPES = [(1, 1), (1, 3), (1, 16), (3, 1), (3, 5), (2, 16), (1, 3000), (7, 13), (64, 1)]
"""Heads and channels: on both sides of every bound in the choice of the form; and wide rows."""

BLOCKS = {
    'every row taken': (4, 30, 60),
    'more edges than pairs': (4, 7, 60),
    'empty rows': (50, 7, 20),
    'one edge': (5, 5, 1),
    'no edges': (5, 3, 0),
    'no rows': (0, 3, 0),
    'repeated edges': (3, 2, 40),
    'no rows and columns': (0, 0, 0),
}
"""Rows, columns, edges."""


def _edges(num_rows: int, num_cols: int, num_edges: int) -> tuple[Tensor, Tensor]:
    if not num_edges:
        return (torch.empty(0, dtype=torch.int64),) * 2
    return torch.randint(num_rows, (num_edges,)), torch.randint(num_cols, (num_edges,))


def _dense_sums(rows: Tensor, cols: Tensor, num_rows: int, values: Tensor, w: Tensor) -> Tensor:
    """Matrix products in float64, one for every head."""
    matrices = torch.zeros(num_rows, values.size(0), w.size(1), dtype=torch.float64)
    matrices.index_put_((rows, cols), w.double(), accumulate=True)
    return torch.einsum('rnh,nhc->rhc', matrices, values.double())


def _dense_sum(
    rows: Tensor, cols: Tensor, num_rows: int, values: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The same with one weight for an edge, or none."""
    w = torch.ones(rows.numel()) if weight is None else weight
    return _dense_sums(rows, cols, num_rows, values.unsqueeze(1), w.unsqueeze(1)).squeeze(1)


FORMS = 'torch', 'compiled'
"""Whether numba is there."""


@pytest.fixture
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == 'torch':
        monkeypatch.setattr(weighted_loops, 'loops', lambda: None)
    else:
        pytest.importorskip('numba')


@pytest.mark.usefixtures('form')
@pytest.mark.parametrize(
    ('form', 'block', 'shape', 'dtype'),
    covering(FORMS, BLOCKS, SHAPES, TOLERANCE),
    indirect=['form'],
)
def test_sums_and_dots_are_dense_products(block, shape, dtype):
    num_rows, num_cols, num_edges = BLOCKS[block]
    rows, cols = _edges(*BLOCKS[block])
    values = torch.randn(num_cols, *shape, dtype=dtype)
    weight = torch.randn(num_edges, shape[0], dtype=dtype)
    want = _dense_sums(rows, cols, num_rows, values, weight).to(dtype)
    segments = make_segments(rows, cols, num_rows)
    for add in (add_weighted_sums, add_by_index_add):
        before = torch.randn(num_rows, *shape, dtype=dtype)
        out = add(before.clone(), values, segments, weight)
        assert_close(out, before + want, tolerance=TOLERANCE[dtype])
    out = torch.full((num_rows, *shape), float('nan'), dtype=dtype)
    assert add_weighted_sums(out, values, segments, weight, replace=True) is out
    assert_close(out, want, tolerance=TOLERANCE[dtype])

    left = torch.randn(num_rows, *shape, dtype=dtype)
    want = torch.einsum('rhc,nhc->rnh', left.double(), values.double())[rows, cols].to(dtype)
    forms = [edge_dots, _dots_by_gather]
    if num_edges <= num_rows * num_cols:
        forms.append(_dots_by_sampling)
    order = rows.argsort(stable=True)
    in_order = make_segments(rows[order], cols[order], num_rows, is_sorted=True)
    for dots in forms:
        for found, edges in ((segments, slice(None)), (in_order, order)):
            out = torch.full((num_edges, shape[0]), float('nan'), dtype=dtype)
            assert dots(out, left, values, found) is out
            assert_close(out, want[edges], tolerance=TOLERANCE[dtype])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize('form', FORMS, indirect=True)
@pytest.mark.usefixtures('form')
def test_any_block(data):
    num_rows, num_cols = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    heads, channels = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    pairs = st.tuples(st.integers(0, num_rows - 1), st.integers(0, num_cols - 1))
    edges = data.draw(st.lists(pairs, max_size=25))
    rows = torch.tensor([r for r, _ in edges], dtype=torch.int64)
    cols = torch.tensor([c for _, c in edges], dtype=torch.int64)
    values = torch.randn(num_cols, heads, channels, dtype=torch.float64)
    weight = torch.randn(len(edges), heads, dtype=torch.float64)
    segments = make_segments(rows, cols, num_rows)
    limits = {
        '_SEGMENT_BYTES': data.draw(st.sampled_from([1, 100, 1 << 20])),
        '_EDGE_BYTES': data.draw(st.sampled_from([1, 100, 1 << 20])),
        '_CHUNK_EDGES': data.draw(st.integers(1, 30)),
    }
    with mock.patch.multiple(spmm, **limits):
        out = torch.zeros(num_rows, heads, channels, dtype=torch.float64)
        add_weighted_sums(out, values, segments, weight)
        assert_close(out, _dense_sums(rows, cols, num_rows, values, weight))
        of_head = values[:, 0].contiguous(), weight[:, 0].contiguous()
        want = _dense_sum(rows, cols, num_rows, *of_head)
        assert_close(_sums(rows, cols, num_rows, *of_head), want)
        # The adjoint: <out, left> = <weight, dots>, edge by edge.
        left = torch.randn_like(out)
        rows, order = rows.sort(stable=True)
        cols = cols[order]
        segments = make_segments(rows, cols, num_rows, is_sorted=True)
        want = (left[rows] * values[cols]).sum(-1)
        assert_close(edge_dots(torch.empty_like(weight), left, values, segments), want)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_with_heads(dtype):
    """Small integers, whose sums are exact in 8 bits of mantissa."""
    rows, cols = _edges(9, 4, 30)
    values = torch.randint(-2, 3, (4, 2, 8)).to(dtype)
    weight = torch.randint(1, 3, (30, 2)).to(dtype)
    out = torch.zeros(9, 2, 8, dtype=dtype)
    add_weighted_sums(out, values, make_segments(rows, cols, 9), weight)
    assert torch.equal(out.double(), _dense_sums(rows, cols, 9, values, weight))
    rows = rows.sort().values
    dots = edge_dots(weight.clone(), out, values, make_segments(rows, cols, 9, is_sorted=True))
    assert torch.equal(dots, (out[rows] * values[cols]).sum(-1))


@pairs(
    block=BLOCKS,
    num_features=[1, 3, 32],
    has_weight=[False, True],
    dtype=WITHOUT_HEADS,
    is_sorted=[False, True],
)
def test_a_matrix_product(block, num_features, has_weight, dtype, is_sorted):
    num_rows, num_cols, num_edges = BLOCKS[block]
    rows, cols = _edges(*BLOCKS[block])
    if is_sorted:
        rows = rows.sort().values
    values = torch.randn(num_cols, num_features, dtype=dtype)
    weight = torch.randn(num_edges, dtype=dtype) if has_weight else None
    segments = make_segments(rows, cols, num_rows, is_sorted=is_sorted)

    want = _dense_sum(rows, cols, num_rows, values, weight).to(dtype)
    out = torch.full((num_rows, num_features), float('nan'), dtype=dtype)
    assert add_segment_sums(out, values, segments, weight, replace=True) is out
    assert_close(out, want, tolerance=WITHOUT_HEADS[dtype])

    before = torch.randn(num_rows, num_features, dtype=dtype)
    out = add_segment_sums(before.clone(), values, segments, weight)
    assert_close(out, before + want, tolerance=WITHOUT_HEADS[dtype])


def _sums(
    rows: Tensor, cols: Tensor, num_rows: int, values: Tensor, weight: Tensor | None = None
) -> Tensor:
    out = values.new_zeros(num_rows, values.size(1))
    return add_segment_sums(out, values, make_segments(rows, cols, num_rows), weight)


@pairs(
    chunk_bytes=[1, 100, 1000],
    num_rows=[7, 60, 300],
    has_weight=[False, True],
    replace=[False, True],
)
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


@pytest.mark.parametrize(
    ('dtype', 'has_weight'),
    [
        *product([torch.int64, torch.int32, torch.int16], [False]),
        *product([torch.float16, torch.bfloat16], [False, True]),
    ],
)
def test_integers_and_half_precision_take_the_fallback(dtype, has_weight):
    """Small integers, whose sums are exact in 8 bits of mantissa."""
    rows, cols = _edges(9, 4, 30)
    largest = 2 if dtype.is_floating_point else 50
    values = torch.randint(-largest, largest + 1, (4, 3)).to(dtype)
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
