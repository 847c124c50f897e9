"""Leaves of nested containers: arguments of functions of torch, and of models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch_geometric.data.data import BaseData

_LEAVES = Tensor, str, int, float, type(None)

PLAIN = (bool, int, float, str, type(None))
"""Numbers and words: attributes of a module that decide what it computes."""


def leaves(value: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (tuple, list)):
        return [value]
    nested = (tuple, list, dict)
    return [x for item in value for x in (leaves(item) if isinstance(item, nested) else [item])]


def in_nested(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dicts, with every leaf changed by a function."""
    if isinstance(value, dict):
        return dict(zip(value, in_nested([*value.values()], change), strict=True))
    if not isinstance(value, (tuple, list)):
        return change(value)
    items = [
        in_nested(item, change) if isinstance(item, (tuple, list, dict)) else change(item)
        for item in value
    ]
    return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)


def leaves_of(value: Any) -> list[Any]:
    """The leaves of nested lists, dicts, dataclasses and PyG's data; else the value itself."""
    out, left = [], [value]
    seen: dict[int, Any] = {}  # containers: one may hold itself
    while left:
        value = left.pop()
        if isinstance(value, _LEAVES):
            out.append(value)
            continue
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, BaseData):
            value = value.stores
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, (list, tuple, set)):
            left.extend(reversed([*value]))
        else:
            out.append(value)
    return out
