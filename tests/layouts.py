"""Ranks, parts and cuts that the exchange is tested with, and rows that it must carry."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from small_graphs import ASSIGNMENTS
from torch import Tensor

LAYOUTS = [(1, 1), (1, 4), (2, 2), (2, 6), (3, 3), (3, 6), (4, 4)]
"""World sizes and numbers of parts."""


def layouts(first: int = 0) -> pytest.MarkDecorator:
    """Every layout from a number on, every kind of cut, and each with two of the others."""
    kinds = ASSIGNMENTS * 2
    cases = [(*each, kinds[i % 3 + k]) for i, each in enumerate(LAYOUTS) for k in (0, 1)]
    return pytest.mark.parametrize(('world_size', 'num_parts', 'kind'), cases[2 * first :])


def same(found: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    """Whether tensors are equal, of the same dtypes too."""
    return all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True)
    )
