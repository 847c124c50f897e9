"""Pieces of a sum on threads: all are done, errors come out, forks and modes are as ever."""

from __future__ import annotations

import multiprocessing
from functools import partial

import pytest
import torch
from ranks import run_as_threads

from pyg_sar.ops.spmm import add_weighted_sums, edge_dots
from pyg_sar.shard.csr import make_segments
from pyg_sar.utils.side_by_side import side_by_side

CPU = torch.device('cpu')


@pytest.fixture(params=[1, 2, 3])
def num_threads(request: pytest.FixtureRequest) -> int:
    torch.set_num_threads(request.param)
    return request.param


def test_every_piece_once(num_threads: int) -> None:
    done = torch.zeros(100, dtype=torch.int64)
    side_by_side((partial(done[i].add_, i) for i in range(100)), CPU)
    assert done.tolist() == list(range(100))
    side_by_side([], CPU)
    assert torch.get_num_threads() == num_threads


def test_a_piece_computes_on_one_thread(num_threads: int) -> None:
    """Threads of every piece would be more than there are cores, and none would wait awake."""
    found: list[int] = []
    side_by_side([lambda: found.append(torch.get_num_threads())] * 20, CPU)
    assert found == [1] * 20
    assert torch.get_num_threads() == num_threads


def test_an_error_comes_out(num_threads: int) -> None:
    def wrong() -> None:
        raise ArithmeticError('of a piece')

    with pytest.raises(ArithmeticError, match='of a piece'):
        side_by_side([wrong] * 5, CPU)
    test_every_piece_once(num_threads)


def _sums() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dst, src = torch.randint(3000, (2, 300_000), generator=generator)
    segments = make_segments(dst.sort().values, src, 3000, is_sorted=True)
    values = torch.randn(3000, 4, 8, generator=generator)
    weight = torch.rand(300_000, 4, generator=generator)
    out = add_weighted_sums(torch.empty_like(values), values, segments, weight, replace=True)
    return out, edge_dots(torch.empty_like(weight), out, values, segments)


def test_the_same_bits_on_any_number_of_threads(num_threads: int) -> None:
    found = _sums()
    with torch.inference_mode():
        again = _sums()
    torch.set_num_threads(1)
    for one, two, three in zip(found, again, _sums(), strict=True):
        assert torch.equal(one, three)
        assert torch.equal(two, three)


def test_ranks_that_are_threads(num_threads: int) -> None:
    for found in run_as_threads(_sums, 3):
        for one, two in zip(found, _sums(), strict=True):
            assert torch.equal(one, two)


def _in_child() -> None:
    test_every_piece_once(torch.get_num_threads())


@pytest.mark.filterwarnings('ignore:This process')  # Python 3.12: a fork with threads
def test_a_fork_has_threads_of_its_own() -> None:
    torch.set_num_threads(2)
    test_every_piece_once(2)
    child = multiprocessing.get_context('fork').Process(target=_in_child)
    child.start()
    child.join(300)
    assert child.exitcode == 0
