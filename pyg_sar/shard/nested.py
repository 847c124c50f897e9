"""What users give to models and get from them: tensors, anywhere in containers of all kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch_geometric.data.data import BaseData

_LEAVES = Tensor, str, int, float, type(None)


def leaves_of(value: Any) -> list[Any]:
    """What is in nested lists, dicts, dataclasses and PyG's data objects; else the value itself."""
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
