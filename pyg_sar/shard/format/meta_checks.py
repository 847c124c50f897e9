"""Checks of what META.json says: whoever wrote it, what is read can be relied upon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_NOT_ATTRS = frozenset({'edge_index', 'n_id', 'e_id', 'num_nodes'})
"""What the loader gives beside the attributes."""


def check_types(path: Path, names: list[str]) -> None:
    """Checks names of types, which also name files.

    Raises:
        ValueError: If one would name a file elsewhere.
    """
    for name in names:
        if '/' in name or '\0' in name:
            raise ValueError(f"expected types that can name files in '{path}' (got {name!r})")


def check_attr_names(path: Path, names: list[str]) -> None:
    """Checks names of attributes that come to lie in one place.

    Raises:
        ValueError: If one is there twice, or is PyG's or the loader's own.
    """
    if len(set(names)) < len(names):
        raise ValueError(f"expected every attribute once in '{path}' (got {sorted(names)})")
    for name in names:
        if name in _NOT_ATTRS or name.startswith('_'):
            raise ValueError(f"expected names of attributes in '{path}' (got '{name}')")


def check_entry(path: Path, entry: Any, fields: dict[str, type], num_parts: int) -> None:
    """Checks the entry of a type or relation: its fields, and that counts fit together.

    Raises:
        ValueError: If something is missing or does not fit.
    """
    check_fields(path, entry, fields)
    for key in (name for name, kind in fields.items() if kind is dict):
        _check_attrs(path, key, entry[key])
    for key in (name for name, kind in fields.items() if kind is list):
        if len(entry[key]) != num_parts:
            raise ValueError(
                f"expected {num_parts} entries in '{key}' of '{path}' (got {len(entry[key])})"
            )
        if key.startswith('part_'):
            _check_ints(path, key, entry[key])
            total = entry[key.removeprefix('part_')]
            if sum(entry[key]) != total:
                raise ValueError(f"expected {total} in all '{key}' of '{path}' (got others)")
            continue
        for row in entry[key]:
            if not isinstance(row, list) or len(row) != num_parts:
                raise ValueError(
                    f"expected rows of {num_parts} counts for '{key}' in '{path}' (got {row!r})"
                )
            _check_ints(path, key, row)
    for part, row in enumerate(entry['block_edges'] if 'block_edges' in fields else []):
        if sum(row) != entry['part_num_edges'][part] or entry['halo_rows'][part][part]:
            raise ValueError(
                f"expected edges of part {part} by blocks, and no halo of its own, in '{path}' "
                '(got others)'
            )


def _check_attrs(path: Path, key: str, attrs: dict[str, Any]) -> None:
    for name, row_type in attrs.items():
        check_fields(path, row_type, {'dtype': str, 'shape': list})
        _check_ints(path, f'{key} {name}', row_type['shape'])


def check_fields(path: Path, entry: Any, fields: dict[str, type]) -> None:
    """Checks that a dict has values of these types.

    Raises:
        ValueError: If one is missing or another.
    """
    for key, kind in fields.items():
        value = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(value, kind):
            raise ValueError(f"expected {kind.__name__} for '{key}' in '{path}' (got {value!r})")


def _check_ints(path: Path, key: str, values: list[Any]) -> None:
    if any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"expected counts for '{key}' in '{path}' (got {values!r})")
