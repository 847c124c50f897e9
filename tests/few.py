"""Some cases of many in ``make test``, all of them in ``make test-slow``; or few that cover all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def few(values: Iterable[Any], every: int = 3) -> list[Any]:
    """Parameters of which one of `every` is not slow, the first one among them."""
    return [value if i % every == 0 else _slow(value) for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)


def pairs(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few cases in which every two values are together; each next one has the most new pairs."""
    every = [*product(*(range(len(each)) for each in values))]
    found = {case: {*combinations(enumerate(case), 2)} for case in every}
    left, cases = set().union(*found.values()), []
    while left:
        cases.append(max(every, key=lambda case: len(found[case] & left)))
        left -= found[cases[-1]]
    return [tuple(each[i] for each, i in zip(values, case, strict=True)) for case in cases]
