"""The compiled loops: what they may be given, and what is done where they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from started import ROOT, run

from pyg_sar.ops.spmm import add_weighted_sums, edge_dots
from pyg_sar.ops.weighted_loops import run_loop
from pyg_sar.shard.csr import Segments, make_segments
from pyg_sar.shard.index_rows import add_rows_at, rows_at

pytest.importorskip('numba')

EDGES = torch.tensor([[0, 0, 1, 3, 3, 3], [2, 1, 1, 0, 2, 2]])
"""Rows, of 4, and columns, of 3."""


def _segments() -> Segments:
    return make_segments(*EDGES, 4, is_sorted=True)


@pytest.mark.parametrize('column', [3, -1, 2**31 - 1])
def test_a_column_that_is_no_row(column):
    segments = _segments()
    segments.columns[3] = column
    values, weight, dots = torch.ones(3, 2, 4), torch.ones(6, 2), torch.zeros(6, 2)
    with pytest.raises(IndexError, match='columns below 3'):
        add_weighted_sums(torch.zeros(4, 2, 4), values, segments, weight)
    with pytest.raises(IndexError, match='columns below 3'):
        edge_dots(dots, torch.ones(4, 2, 4), values, segments)


@pytest.mark.parametrize('dtype', [torch.int32, torch.int64])
@pytest.mark.parametrize('row', [5, -1])
def test_an_index_of_no_row(row, dtype):
    index = torch.tensor([0, row, 1], dtype=dtype)
    # Rows of 16 bytes are read by torch.
    for width, words in ((4, 'index out of range'), (5, 'index of rows')):
        values = torch.ones(5, width)
        with pytest.raises(IndexError, match=words):
            rows_at(values, index)
        with pytest.raises(IndexError, match='index of rows'):
            add_rows_at(values, index, torch.ones(3, width))


def test_rows_that_do_not_fit_are_refused():
    for rows in (torch.ones(2, 4), torch.ones(3, 5)):
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            add_rows_at(torch.zeros(5, 4), torch.tensor([0, 4, 1]), rows)


def test_dots_are_never_written_to_a_copy():
    dots = torch.zeros(2, 6).t()
    with pytest.raises(RuntimeError, match='view'):
        edge_dots(dots, torch.ones(4, 2, 4), torch.ones(3, 2, 4), _segments())


def test_rows_as_they_come():
    """Strided, with a gradient, in inference mode, of more dimensions, none at all."""
    values, index = torch.randn(4, 9).t(), torch.tensor([8, 0, 0])
    assert torch.equal(rows_at(values, index), values[index])
    assert torch.equal(rows_at(values.clone().requires_grad_(), index), values[index])
    with torch.inference_mode():
        assert torch.equal(rows_at(values * 1, index), values[index])
    assert rows_at(torch.ones(9, 2, 2), index).shape == (3, 2, 2)
    assert rows_at(torch.ones(9, 2), index[:0]).shape == (0, 2)
    assert rows_at(torch.ones(0, 2), index[:0]).shape == (0, 2)
    target, rows = torch.zeros(9, 4).requires_grad_(), torch.ones(4, 3).t()
    with torch.no_grad():
        add_rows_at(target, index, rows)
    assert target.sum(1).tolist() == [8, 0, 0, 0, 0, 0, 0, 0, 4]


def test_infinities_and_what_is_no_number():
    values = torch.ones(3, 1, 20)
    values[0], values[1] = float('inf'), float('nan')
    weight = torch.tensor([[1.0], [1], [0], [0], [1], [1]])
    out = add_weighted_sums(torch.zeros(4, 1, 20), values, _segments(), weight)
    assert out[0].isnan().all()
    assert out[1].isnan().all()  # 0 * nan
    assert not out[2].any()
    assert out[3].isnan().all()  # 0 * inf
    dots = edge_dots(torch.zeros(6, 1), torch.ones(4, 1, 20), values, _segments())
    assert dots.squeeze(1).tolist()[0] == 20
    assert dots.squeeze(1).tolist()[3] == float('inf')
    assert dots[1:3].isnan().all()


def test_tensors_as_they_come():
    """Strided values and weights, places of 64 bits, with a gradient, in inference mode."""
    values, weight = torch.randn(4, 2, 3).permute(2, 1, 0), torch.rand(2, 6).t().requires_grad_()
    want = add_weighted_sums(
        torch.zeros(4, 2, 4), values.contiguous(), _segments(), weight.detach().contiguous()
    )
    segments = _segments()._replace(perm=torch.arange(6))
    with torch.inference_mode():
        assert torch.equal(add_weighted_sums(torch.zeros(4, 2, 4), values, segments, weight), want)
    strided = torch.zeros(2, 4, 4).transpose(0, 1)
    torch.testing.assert_close(add_weighted_sums(strided, values, segments, weight.detach()), want)


def test_one_segment_of_all_edges():
    rows = torch.zeros(200_000, dtype=torch.int64)
    segments = make_segments(rows, rows, 1, is_sorted=True)
    out = torch.full((1, 1, 4), 7.0)
    run_loop(torch.ones(1, 1, 4), segments, out=out, weight=torch.ones(200_000, 1), replace=True)
    assert out.view(-1).tolist() == [200_000.0] * 4


def _run(folder: Path, **environment: str) -> tuple[str, str]:
    """What a new process prints, and what it warns of."""
    done = run(['python', '-c', SUM], folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


SUM = """
import torch
from pyg_sar.utils.installed import loops
from pyg_sar.shard.index_rows import rows_at
assert rows_at(torch.arange(6.0).view(3, 2), torch.tensor([2, 0])).tolist() == [[4, 5], [0, 1]]
print('compiled' if loops() else 'torch')
"""


@pytest.mark.slow
def test_what_numba_may_not_do(tmp_path):
    assert _run(tmp_path)[0] == 'compiled'
    assert _run(tmp_path, NUMBA_DISABLE_JIT='1')[0] == 'torch'


@pytest.mark.slow
@pytest.mark.parametrize(
    ('error', 'says'),
    [
        ('ModuleNotFoundError("No module named numba", name="numba")', ''),
        ('ImportError("Numba needs NumPy 2.9")', 'NumPy 2.9'),
    ],
)
def test_a_numba_that_cannot_be_imported(tmp_path, error, says):
    (tmp_path / 'numba.py').write_text(f'raise {error}\n')
    found, warned = _run(tmp_path, PYTHONPATH=f'{tmp_path}:{ROOT}')
    assert found == 'torch'
    assert says in warned
    assert ('UserWarning' in warned) == bool(says)
