"""Edge lists in Parquet and CSV files, read by pyarrow a batch of rows at a time."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from pyg_sar.partitioner.on_disk.mapped import Array, Scratch, map_raw

TABLES = ('.parquet', '.csv')
"""Endings of the files that :func:`read_table` reads."""


def read_table(path: Path, scratch: Scratch) -> dict[str, Array]:
    """Reads a table with a row per edge, .parquet or .csv with a header, into scratch space.

    Gives ``edge_index`` integer [2, E], and every other column [E], mapped. Sources and
    destinations are the columns ``src`` and ``dst``, or the first two.

    Raises:
        ValueError: If pyarrow is not installed, or a column does not hold numbers, one in each row.
        OSError: If a file cannot be read or written.
    """
    names: list[str] = []
    files: list[Any] = []
    dtypes: list[np.dtype[Any]] = []
    num_edges = 0
    with ExitStack() as stack:
        for batch in _batches(path):
            names = names or _column_order(list(batch.schema.names), path)
            columns = [_numbers(batch, name, path) for name in names]
            values = [np.stack(np.broadcast_arrays(*columns[:2]), axis=1), *columns[2:]]
            if not files:
                files = [
                    stack.enter_context(tempfile.TemporaryFile(dir=scratch.folder)) for _ in values
                ]
                dtypes = [array.dtype for array in values]
            for file, dtype, array in zip(files, dtypes, values, strict=True):
                file.write(np.ascontiguousarray(array, dtype).data)
            num_edges += batch.num_rows
        for file in files:
            file.flush()
        if not files:
            return {'edge_index': np.empty((2, 0), np.int64)}
        shapes = [(num_edges, 2), *[(num_edges,)] * (len(files) - 1)]
        arrays = [map_raw(*of) for of in zip(files, dtypes, shapes, strict=True)]
    if arrays[0].dtype.kind not in 'iu':
        raise ValueError(f"expected integers in {names[:2]} of '{path}' (got {arrays[0].dtype})")
    return {'edge_index': arrays[0].T, **dict(zip(names[2:], arrays[1:], strict=True))}


def _batches(path: Path) -> Iterator[Any]:
    module = 'pyarrow.parquet' if path.suffix == '.parquet' else 'pyarrow.csv'
    try:
        reader = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"expected pyarrow to be installed to read '{path}' (got: {error}); install it with "
            "pip install 'pyg_sar[parquet]'"
        ) from error
    pyarrow = importlib.import_module('pyarrow')
    try:
        if path.suffix == '.parquet':
            with reader.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=_BATCH)
        else:
            with reader.open_csv(path) as file:
                yield from file
    except pyarrow.ArrowInvalid as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"expected a table of numbers in '{path}' (got: {first_line})") from error


def _column_order(names: list[str], path: Path) -> list[str]:
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(
            f"expected two columns or more, of different names, in '{path}' (got {names})"
        )
    ends = ['src', 'dst'] if {'src', 'dst'} <= set(names) else names[:2]
    return [*ends, *(name for name in names if name not in ends)]


def _numbers(batch: Any, name: str, path: Path) -> Array:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        raise ValueError(
            f"expected no empty cell in '{name}' of '{path}' (got {column.null_count})"
        )
    values: Array = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in 'biuf':
        raise ValueError(f"expected numbers in '{name}' of '{path}' (got {column.type})")
    return values


_BATCH = 1 << 20
"""Rows at a time of a Parquet file."""
