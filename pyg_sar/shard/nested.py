"""What users give to models and get from them: tensors, anywhere in containers of all kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch_geometric.data.data import BaseData


def leaves_of(value: Any) -> Iterator[Any]:
    """What is in nested lists, dicts, dataclasses and PyG's data objects; else the value itself."""
    if isinstance(value, BaseData):
        value = value.stores
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        for each in value:
            yield from leaves_of(each)
    else:
        yield value
