"""With numba nodes are numbered and rows are taken in compiled loops: to the bit as without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_sar.loader import attributes, numbering
from pyg_sar.utils import installed

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
