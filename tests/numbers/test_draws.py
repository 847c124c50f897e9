"""Numbers drawn by keys: uniform, independent, and the same whoever draws them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyg_sar.utils.rng import normal, uniform

N = 100_000
_MASK = 2**64 - 1


def _by_hand(seed: int, *keys: int) -> float:
    """SplitMix64 in Python's integers, one sequence inside another."""

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return z ^ (z >> 31)

    state = mixed(seed & _MASK)
    for key in keys:
        state = mixed((state + (key + 1) * 0x9E3779B97F4A7C15) & _MASK)
    return (state >> 11) / 2**53


@pytest.mark.parametrize('seed', [0, 1, -1, 2**63 - 1, -(2**63)])
def test_by_hand(seed: int) -> None:
    keys = torch.tensor([[0], [1], [7], [2**40], [-3]])
    got = uniform(seed, keys, torch.arange(3))
    want = [[_by_hand(seed, key, column) for column in range(3)] for key in keys.view(-1).tolist()]
    assert got.tolist() == want
    assert uniform(seed, 7, 2).item() == want[2][2]
    assert uniform(seed).item() == _by_hand(seed)


def test_the_first_number_of_splitmix64() -> None:
    """The outputs of its reference program for the seed 1234567, after the hash of our seed."""
    reference = 6457827717110365317, 3203168211198807973, 9817491932198370423
    unmixed = 1234567  # of the state after the seed: its hash is undone
    for bits, factor in ((31, None), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
        if factor is not None:
            unmixed = unmixed * pow(factor, -1, 2**64) & _MASK
        shifted = unmixed
        for _ in range(3):
            shifted = unmixed ^ (shifted >> bits)
        unmixed = shifted
    seed = unmixed - 2**64 if unmixed >= 2**63 else unmixed
    assert uniform(seed, torch.arange(3)).tolist() == [(z >> 11) / 2**53 for z in reference]


def _p_of_chi_squared(counts: Tensor) -> float:
    """How likely counts at least as unequal are, if all cells are equally likely."""
    expected = counts.sum() / counts.numel()
    statistic = ((counts - expected).square() / expected).sum()
    freedom = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, statistic.double() / 2).item()


def _cells(values: Tensor, num: int) -> Tensor:
    return (values * num).long()


KEYS = {
    'ids': lambda: (0, torch.arange(N)),
    'columns': lambda: (0, 5, torch.arange(N)),
    'ids far apart': lambda: (3, torch.arange(N) * 2**44),
    'negative ids': lambda: (3, -torch.arange(N)),
    'ids and columns': lambda: (11, torch.arange(N // 100).unsqueeze(1), torch.arange(100)),
}


@pytest.mark.parametrize('name', KEYS)
def test_uniform(name: str) -> None:
    values = uniform(*KEYS[name]()).view(-1)
    assert values.dtype == torch.float64
    assert 0 <= values.min() < values.max() < 1
    assert values.unique().numel() == N
    counts = torch.bincount(_cells(values, 256), minlength=256)
    low_bits = torch.bincount((values * 2**53).long() % 256, minlength=256)
    pairs = _cells(values[:-1], 16) * 16 + _cells(values[1:], 16)  # neighbours
    for each in (counts, low_bits, torch.bincount(pairs, minlength=256)):
        assert 1e-4 < _p_of_chi_squared(each) < 1 - 1e-4


def test_seeds_keys_and_columns_are_independent() -> None:
    ids = torch.arange(N)
    first = uniform(0, ids)
    others = {
        'seed': uniform(1, ids),
        'large seed': uniform(2**40, ids),
        'next id': uniform(0, ids + 1),
        'column': uniform(0, ids, 0),
        'other column': uniform(0, ids, 1),
        'order of keys': uniform(0, 1, ids),
    }
    series = torch.stack([first, *others.values()])
    correlations = torch.corrcoef(series) - torch.eye(len(series), dtype=torch.float64)
    assert correlations.abs().max() < 4 / math.sqrt(N)
    for other in others.values():
        both = torch.bincount(_cells(first, 16) * 16 + _cells(other, 16), minlength=256)
        assert 1e-4 < _p_of_chi_squared(both) < 1 - 1e-4


def test_one_bit_of_a_key_turns_half_of_the_bits() -> None:
    ids = torch.arange(1000)
    for bit in range(63):
        turned = (uniform(0, ids) * 2**53).long() ^ (uniform(0, ids ^ (1 << bit)) * 2**53).long()
        share = torch.stack([turned >> i & 1 for i in range(53)]).double().mean(dim=1)
        # Of low bits every pair of ids counts twice.
        assert (share - 0.5).abs().max() < 5 * 0.5 / math.sqrt(500)


def test_normal() -> None:
    values = normal(0, torch.arange(N // 100).unsqueeze(1), torch.arange(100)).view(-1)
    assert values.isfinite().all()
    moments = [values.pow(k).mean().item() for k in (1, 2, 3, 4)]
    deviations = (1, math.sqrt(2), math.sqrt(15), math.sqrt(96))  # of x, x^2, x^3, x^4
    for moment, want, deviation in zip(moments, (0, 1, 0, 3), deviations, strict=True):
        assert abs(moment - want) < 4 * deviation / math.sqrt(N)
    cells = torch.bincount(_cells(torch.special.ndtr(values), 128), minlength=128)
    assert 1e-4 < _p_of_chi_squared(cells) < 1 - 1e-4
    columns = torch.corrcoef(values.view(-1, 100).T) - torch.eye(100, dtype=torch.float64)
    assert columns.abs().max() < 5 / math.sqrt(N // 100)


def test_pieces_have_the_same_bits() -> None:
    ids, columns = torch.arange(999), torch.arange(7)
    whole = normal(4, ids.unsqueeze(1), columns)
    order = torch.randperm(999)
    assert torch.equal(normal(4, order.unsqueeze(1), columns), whole[order])
    for size in (1, 5, 8, 333):
        pieces = [normal(4, piece.unsqueeze(1), columns) for piece in ids.split(size)]
        assert torch.equal(torch.cat(pieces), whole)
