"""A public function that is collective says its name in the errors of ranks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import pyg_sar

BEFORE_RANKS = {'init', 'profile'}
"""Collective, but they only meet the other ranks, or name what runs inside of them."""


def _functions() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(pyg_sar, name) for name in pyg_sar.__all__}
    return {name: each for name, each in found.items() if inspect.isfunction(each)}


def _name_in_errors(function: Any) -> str | None:
    """What :func:`pyg_sar.comm.collective` was given, where it decorates the function itself."""
    while hasattr(function, '__wrapped__'):
        name = inspect.getclosurevars(function).nonlocals.get('name')
        if name is not None:
            return str(name)
        function = function.__wrapped__
    return None


@pytest.mark.parametrize('name', _functions())
def test_a_collective_function_is_named(name: str) -> None:
    function = _functions()[name]
    is_collective = re.search(r'^ *Collective', inspect.getdoc(function) or '', re.M) is not None
    if is_collective and name not in BEFORE_RANKS:
        assert _name_in_errors(function) == name
    else:
        assert _name_in_errors(function) in (None, name)
