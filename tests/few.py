"""Some cases of many in ``make test``, all of them in ``make test-slow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], every: int = 3) -> list[Any]:
    """Parameters of which one of `every` is not slow, the first one among them."""
    return [value if i % every == 0 else _slow(value) for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
