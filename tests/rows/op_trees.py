"""Tensors in the arguments and results of a function, found and replaced in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def replaced(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The value with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(replaced(each, change) for each in value)
    if isinstance(value, dict):
        return {key: replaced(each, change) for key, each in value.items()}
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of arguments."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    replaced(value, note)
    return found


def leaves_of(value: Any) -> list[Any]:
    """What a result consists of; also of named tuples."""
    if isinstance(value, (tuple, list)):
        return [leaf for each in value for leaf in leaves_of(each)]
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves_of(each)]
    return [value]
