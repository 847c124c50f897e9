"""What is in tuples, lists and dicts, however deep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def leaves(value: Any) -> list[Any]:
    """What is in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (tuple, list)):
        return [value]
    nested = (tuple, list, dict)
    return [x for each in value for x in (leaves(each) if isinstance(each, nested) else [each])]


def in_nested(value: Any, change: Callable[[Any], Any]) -> Any:
    """Tuples, lists and dicts with other leaves."""
    if isinstance(value, dict):
        return dict(zip(value, in_nested([*value.values()], change), strict=True))
    if not isinstance(value, (tuple, list)):
        return change(value)
    items = [
        in_nested(each, change) if isinstance(each, (tuple, list, dict)) else change(each)
        for each in value
    ]
    return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)
