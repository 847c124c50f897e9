"""Few cases of many parameters: every two values of different parameters meet in one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairs(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """Parameters of a test, by name; of all cases those that :func:`covering` chooses."""
    return pytest.mark.parametrize(list(values), covering(*values.values()))


def covering(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Each next case has the most pairs of values that no case before it has."""
    every = {case: _pairs(case) for case in product(*values)}
    left, cases = set().union(*every.values()), []
    while left:
        cases.append(max(every, key=lambda case: len(every[case] & left)))
        left -= every[cases[-1]]
    return cases


def _pairs(case: Sequence[Any]) -> set[Any]:
    return set(combinations(enumerate(case), 2))
