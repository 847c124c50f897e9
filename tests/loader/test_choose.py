"""Draws have the distribution that they are said to have."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_sar.loader import attributes, choose, numbering
from pyg_sar.loader.numbering import number
from pyg_sar.utils import installed
from pyg_sar.utils.rng import hashed

COUNTS = [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
WEIGHTS = torch.tensor([0.5, 3.0, 0.0, 1.0, 2.0], dtype=torch.float64)


def _p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Of Pearson's test; what is impossible must not have happened."""
    possible = probabilities > 0
    assert not counts[~possible].any()
    counts, wanted = counts[possible], probabilities[possible] * counts.sum()
    assert float(wanted.min()) > 5
    statistic = ((counts - wanted) ** 2 / wanted).sum()
    half = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic / 2))


def _sets(drawn: Tensor, num: int) -> Tensor:
    """How often each set of numbers came, of draws ``[k, N]``."""
    sets = list(combinations(range(num), drawn.size(0)))
    code = {sum(1 << i for i in each): place for place, each in enumerate(sets)}
    counts = torch.bincount((1 << drawn).sum(0), minlength=1 << num)
    assert counts.sum() == counts[list(code)].sum()  # no number twice
    return counts[list(code)]


def _states(count: int, seed: int = 0) -> Tensor:
    return hashed(seed, torch.arange(count))


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize(('num', 'k'), [(2, 1), (5, 2), (6, 3), (8, 4), (8, 7)])
def test_every_set_is_as_likely(num: int, k: int, count: int) -> None:
    drawn = choose.distinct(_states(count, seed=num), torch.full((count,), num), k)
    counts = _sets(drawn, num)
    even = torch.full((counts.numel(),), 1 / counts.numel(), dtype=torch.float64)
    assert _p_value(counts, even) > 1e-3, (num, k)


def _nodes(count: int, num: int) -> tuple[Tensor, Tensor]:
    """Where the edges of `count` nodes begin, with a gap between; how many they have."""
    return torch.arange(count) * (num + 1), torch.full((count,), num)


def _check_places(drawn: Any, start: Tensor, num: int, k: int, want: Tensor) -> None:
    """Every node has `k` draws of its `num` edges, and sequences of draws their probabilities."""
    place, found = drawn
    assert torch.equal(found, torch.full_like(start, k))
    offset = place.view(-1, k) - start.unsqueeze(1)
    code = (offset * num ** torch.arange(k)).sum(1)
    assert _p_value(torch.bincount(code, minlength=num**k), want) > 1e-3


@pytest.mark.parametrize('count', COUNTS)
def test_draws_with_replacement_are_independent(count: int) -> None:
    start, num = _nodes(count, 4)
    drawn = choose.repeated(_states(count), start, num, 3)
    _check_places(drawn, start, 4, 3, torch.full((64,), 1 / 64, dtype=torch.float64))


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('k', [1, 2, 3])
def test_weighted_draws_have_their_probabilities(count: int, k: int) -> None:
    start, num = _nodes(count, 5)
    weight = torch.cat([WEIGHTS, torch.full((1,), 99.0)]).repeat(count)
    wanted = torch.zeros(5**k, dtype=torch.float64)
    for order in permutations(range(5), k):
        left, probability = float(WEIGHTS.sum()), 1.0
        for i in order:
            probability *= float(WEIGHTS[i]) / left
            left -= float(WEIGHTS[i])
        wanted[sum(i * 5**j for j, i in enumerate(order))] = probability
    _check_places(choose.weighted(_states(count), start, num, k, weight), start, 5, k, wanted)


@pytest.mark.parametrize('count', COUNTS)
def test_weighted_draws_with_replacement(count: int) -> None:
    start, num = torch.arange(count) * 5, torch.full((count,), 5)
    cdf = choose.cumulated(WEIGHTS.repeat(count), torch.arange(count + 1) * 5)
    drawn = choose.weighted_repeated(_states(count), start, num, 2, cdf)
    share = WEIGHTS / WEIGHTS.sum()
    _check_places(drawn, start, 5, 2, torch.outer(share, share).view(-1))


FEW = torch.tensor([0, 1, 3, 0, 2, 5, 0])


@pytest.mark.parametrize(
    ('way', 'counts'),
    [
        ('uniform', [0, 1, 2, 0, 2, 2, 0]),
        ('repeated', [0, 2, 2, 0, 2, 2, 0]),
        ('weighted', [0, 1, 0, 0, 2, 2, 0]),
        ('weighted_repeated', [0, 2, 0, 0, 2, 2, 0]),
    ],
)
def test_nodes_with_few_edges_or_none(way: str, counts: list[int]) -> None:
    for num, want in ((FEW, counts), (FEW * 0, [0] * 7)):
        start, more = num.cumsum(0) - num, []
        weight = torch.ones(int(num.sum()), dtype=torch.float64)
        weight[1:4] = 0.0  # all of the third node's
        if way == 'weighted':
            more = [weight]
        elif way == 'weighted_repeated':
            more = [choose.cumulated(weight, torch.cat([start, num.sum().view(1)]))]
        place, count = getattr(choose, way)(_states(7), start, num, 2, *more)
        assert count.tolist() == want
        node = torch.repeat_interleave(count)
        assert bool(((place >= start[node]) & (place < (start + num)[node])).all())


@pytest.mark.parametrize('scale', [1, 2**50])  # in one number with the place, and not
def test_nodes_are_numbered(scale: int) -> None:
    known = torch.tensor([5, 2, 5, 9]) * scale
    keys = torch.tensor([7, 5, 3, 7, 2, 3, 9]) * scale
    new, place = number(known, keys)
    assert new.tolist() == [3 * scale, 7 * scale]
    assert place.tolist() == [5, 0, 4, 5, 1, 4, 3]
    new, place = number(known[:0], keys[:0])
    assert new.numel() == place.numel() == 0


def test_sums_of_weights_do_not_depend_on_other_nodes() -> None:
    weight = torch.rand(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ptr = torch.tensor([0, 4, 4, 17, 30])
    whole = choose.cumulated(weight, ptr)
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        alone = choose.cumulated(weight[start:end], torch.tensor([0, end - start]))
        assert torch.equal(whole[start:end], alone)


pytest.importorskip('numba')


@pytest.mark.parametrize('top', [1, 90, 5_000, 1_354_752, 2**40, 2**62])
@pytest.mark.parametrize(('num_known', 'num_keys'), [(0, 1), (1, 3), (50, 900), (20_000, 70_000)])
def test_numbers(num_known: int, num_keys: int, top: int) -> None:
    generator = np.random.default_rng(0)
    known, keys = generator.integers(0, top, num_known), generator.integers(0, top, num_keys)
    want, found = numbering._by_sorting(known, keys), numbering._by_hashing(known, keys)
    for a, b in zip(want, found, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_keys_of_one_block_in_order() -> None:
    """All keys but one fall into one part of the table."""
    keys = np.append(np.arange(30_000).repeat(2), 2**50)
    new, numbers = numbering._by_hashing(keys[:0], keys)
    np.testing.assert_array_equal(new[numbers], keys)


ROWS: dict[str, Tensor] = {
    'float32': torch.arange(60.0).view(12, 5),
    'a number': torch.arange(12),
    'odd bytes': torch.arange(36, dtype=torch.uint8).view(12, 3),
    'bool': torch.arange(12) % 3 == 0,
    'bfloat16': torch.arange(36).view(12, 3).bfloat16(),
    'two dimensions': torch.arange(96.0, dtype=torch.float64).view(12, 2, 4),
    'nothing': torch.empty(12, 0),
    'complex': torch.randn(12, 2, dtype=torch.complex64),
    'conjugate': torch.randn(12, 2, dtype=torch.complex64).conj(),
    'not aligned': torch.arange(39, dtype=torch.uint8)[3:].view(12, 3),
    'columns': torch.arange(60.0).view(5, 12).t(),
}


@pytest.mark.parametrize('name', ROWS)
def test_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = ROWS[name]
    row = torch.tensor([0, -1, 4, -7, -3, 2, -4, 0, -2])
    own, came = values[:5], [values[5:8], values[8:8], values[8:]]
    found = attributes.take(own, row, came)
    monkeypatch.setattr(attributes, 'loops', lambda: None)
    assert torch.equal(found, attributes.take(own, row, came))
    assert torch.equal(found, torch.cat([own, *came])[torch.where(row < 0, 4 - row, row)])
    assert installed.loops() is not None
