"""Merge states: blocks merged one after another give what all edges at once give."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import assert_close
from torch import Tensor
from torch_geometric.utils import softmax

from pyg_sar.ops.reductions import SoftmaxStats


def _blocks(num_edges: int, cuts: list[int]) -> list[slice]:
    """Runs of edges between the cuts, empty ones included."""
    places = [0, *sorted(cuts), num_edges]
    return [slice(a, b) for a, b in pairwise(places)]


@st.composite
def _cut_edges(draw: st.DrawFn) -> tuple[int, Tensor, list[slice]]:
    """Number of destinations, the destination of every edge, and blocks of edges."""
    num_dst = draw(st.integers(1, 6))
    dst = draw(st.lists(st.integers(0, num_dst - 1), max_size=20))
    cuts = draw(st.lists(st.integers(0, len(dst)), max_size=5))
    return num_dst, torch.tensor(dst, dtype=torch.int64), _blocks(len(dst), cuts)


def _merged_softmax(num_dst: int, dst: Tensor, logits: Tensor, blocks: list[slice]) -> Tensor:
    stats = SoftmaxStats(num_dst)
    for block in blocks:
        stats.step(logits[block], dst[block])
    stats.finish(torch.bincount(dst, minlength=num_dst))
    return torch.cat([stats.alpha(logits[block], dst[block]) for block in blocks])


@given(_cut_edges(), st.sampled_from([(), (1,), (3,), (2, 2)]), st.sampled_from([1.0, 30.0, 1e3]))
@settings(max_examples=80, deadline=None)
def test_softmax_over_any_blocks(edges, trailing, scale):
    """Also rows without edges, rows whose edges lie in one block or in all, huge logits."""
    num_dst, dst, blocks = edges
    logits = torch.randn(dst.numel(), *trailing, dtype=torch.float64) * scale
    got = _merged_softmax(num_dst, dst, logits, blocks)
    assert_close(got, softmax(logits, dst, num_nodes=num_dst))


def test_softmax_float32():
    dst = torch.randint(5, (200,))
    logits = torch.randn(200, 4) * 100
    got = _merged_softmax(7, dst, logits, _blocks(200, [13, 13, 90, 170]))
    assert got.dtype == torch.float32
    want = softmax(logits.double(), dst, num_nodes=7)
    assert_close(got, want.float(), tolerance=1e-5)


def test_softmax_statistics():
    """Logits near each other have one number for a maximum, others one for every destination."""
    stats = SoftmaxStats(3)
    first = torch.tensor([1.0, 3.0]).double()
    weight = stats.step(first, torch.tensor([0, 2]))
    assert stats.max.shape == ()
    assert stats.scale is None
    assert_close(weight, (first - 3).exp())
    stats.step(torch.tensor([2.0, 102.0]).double(), torch.tensor([0, 2]))
    assert stats.max.tolist() == [3.0, float('-inf'), 102.0]
    want = torch.tensor([torch.e**-2 + torch.e**-1, 0, 1], dtype=torch.float64)
    assert_close(stats.sum, want)


@pytest.mark.parametrize('far', [18, 22, 80, -18, -22, -80, 1e3, -1e3])
@pytest.mark.parametrize('place', range(3))
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_softmax_where_one_block_is_far_from_the_others(far, place, dtype):
    """A destination in one block, one in all, one that has nothing near."""
    dst = torch.tensor([0, 1, 0, 2, 0, 3])
    logits = torch.tensor([0.5, 0.0, 1.0, -0.5, 0.25, 1.5], dtype=dtype)
    logits[2 * place : 2 * place + 2] += far
    got = _merged_softmax(5, dst, logits, _blocks(6, [2, 4]))
    want = softmax(logits.double(), dst, num_nodes=5)
    assert_close(got.double(), want, tolerance=1e-5 if dtype == torch.float32 else 1e-12)


INF = float('inf')
HUGE = [1e3, -1e3, 999.0], [-1e3, 1e3, 1e3], [-1e308, 1e308, 0.0]
MASKED = [0.5, -INF, 1.0], [-INF, 0.5, 1.0], [-INF, -INF, 1.0], [1.0, -INF, -INF]


@pytest.mark.parametrize('logits', [*HUGE, *MASKED], ids=str)
@pytest.mark.parametrize('cuts', [[], [1], [2], [1, 2]], ids=str)
def test_huge_and_masked_logits(logits, cuts):
    """Exp of a huge one would overflow or vanish; -inf masks an edge out, in whichever block."""
    logits, dst = torch.tensor(logits, dtype=torch.float64), torch.zeros(3).long()
    got = _merged_softmax(2, dst, logits, _blocks(3, cuts))
    assert_close(got, torch.softmax(logits, 0))


def test_masked_logits_beside_others():
    """A destination whose edges in a block are all masked leaves the others alone."""
    logits = torch.tensor([-INF, 1.0, 2.0, 0.0], dtype=torch.float64)
    dst = torch.tensor([0, 1, 0, 1])
    got = _merged_softmax(2, dst, logits, _blocks(4, [2]))
    assert_close(got, softmax(logits, dst, num_nodes=2))
