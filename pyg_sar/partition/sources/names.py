"""Numbers 0 to N-1 in the place of ids that are names, UUIDs or numbers with gaps.

A batch of ids is encoded by its own dictionary. Dictionaries are joined as often as their names are
twice as many as before, so that the memory is that of the different ids and of int32 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.memmap import Int64Array

BATCH_ROWS = 1 << 17


class Numbering:
    """Gives numbers to ids, which come in batches of one or more columns, row by row."""

    def __init__(self) -> None:
        self._chunks: list[Any] = []
        self._num_columns = 1
        self._joined = self._waiting = 0  # names

    def add(self, *columns: Any) -> None:
        """The ids of some rows: arrays of one length and type, such as of sources and targets."""
        pyarrow = import_module('pyarrow')
        ids = [plain_ids(column) for column in columns]
        chunk = ids[0]
        if len(ids) > 1:
            order = np.arange(sum(map(len, ids))).reshape(len(ids), -1).T.reshape(-1)
            chunk = pyarrow.concat_arrays(ids).take(pyarrow.array(order))
        chunk = chunk.dictionary_encode()
        self._num_columns = len(ids)
        self._chunks.append(chunk)
        self._waiting += len(chunk.dictionary)
        if self._waiting > max(self._joined, BATCH_ROWS):
            self._join()

    def _join(self) -> None:
        chunked = import_module('pyarrow').chunked_array(self._chunks)
        self._chunks = [chunked.unify_dictionaries().combine_chunks()]
        self._joined, self._waiting = len(self._chunks[0].dictionary), 0

    def result(self, *, is_sorted: bool) -> tuple[Tensor, Any]:
        """The numbers, int32 [rows, columns], and the id of every number, a pyarrow Array.

        Numbers are in the order in which ids first come, row by row, or in that of the ids.
        """
        self._join()
        encoded, self._chunks = self._chunks[0], []
        names, numbers = encoded.dictionary, np.array(encoded.indices)
        if is_sorted:
            order = import_module('pyarrow.compute').sort_indices(names)
            names, place = names.take(order), np.empty(len(names), np.int32)
            place[order.to_numpy()] = np.arange(len(names), dtype=np.int32)
            numbers = place[numbers]
        return torch.from_numpy(numbers.reshape(-1, self._num_columns)), names


def number(columns: Sequence[Any], *, is_sorted: bool) -> tuple[list[Tensor], Any]:
    """Numbers 0 to N-1 for all ids of columns together, and the id of every number.

    Args:
        columns: Chunked arrays of pyarrow of the same number of rows: text, categories, UUIDs, or
            integers.
        is_sorted: Whether numbers are in ascending order of the ids. By default they are in the
            order in which ids first come, row by row, of a row in that of the columns, as by
            ``pandas.factorize(table[['src', 'dst']].to_numpy().ravel())``.

    Returns:
        The numbers of every column, int32 [E], and a pyarrow Array [N].
    """
    numbering = Numbering()
    for start in range(0, max(len(columns[0]), 1), BATCH_ROWS):
        numbering.add(*(_array(column.slice(start, BATCH_ROWS)) for column in columns))
    numbers, names = numbering.result(is_sorted=is_sorted)
    return [column.contiguous() for column in numbers.unbind(1)], names


def look_up(names: Any, column: Any) -> Tensor:
    """The places int64 [E] of ids in `names`, where all of them must be."""
    found = places(names, column)
    missing = np.flatnonzero(found < 0)
    if missing.size:
        row = int(missing[0])
        raise ValueError(
            f'expected ids of the table of nodes (got {column[row].as_py()!r} in row {row}, the '
            'first is 0)'
        )
    return torch.from_numpy(found)


def places(names: Any, ids: Any) -> Int64Array:
    """The places of ids in `names`, -1 of others."""
    index_in = import_module('pyarrow.compute').index_in
    found = index_in(plain_ids(_array(ids)), value_set=plain_ids(names))
    return np.asarray(found.fill_null(-1), dtype=np.int64)


def plain_ids(ids: Any) -> Any:
    """Ids as an array of int64, large_string, large_binary, or binary of one size."""
    pyarrow = import_module('pyarrow')
    types, ids = pyarrow.types, storage(ids)
    if types.is_dictionary(ids.type):
        ids = storage(ids.dictionary_decode())
    if types.is_integer(ids.type):
        return ids.cast(pyarrow.int64())
    if is_text(ids.type):
        return ids.cast(pyarrow.large_string())
    is_bytes = types.is_binary(ids.type) or str(ids.type) == 'binary_view'
    return ids.cast(pyarrow.large_binary()) if is_bytes else ids


def id_type(type_: Any) -> Any | None:
    """The type of ids of a type of a column, as :func:`plain_ids` has it; None of no ids."""
    pyarrow = import_module('pyarrow')
    type_ = getattr(type_, 'storage_type', type_)
    type_ = type_.value_type if pyarrow.types.is_dictionary(type_) else type_
    if not (pyarrow.types.is_integer(type_) or is_text(type_) or 'binary' in str(type_)):
        return None
    return plain_ids(pyarrow.nulls(0, type_)).type


def is_text(type_: Any) -> bool:
    """Whether a type of pyarrow is of strings."""
    return str(type_) in ('string', 'large_string', 'string_view')


def storage(array: Any) -> Any:
    """What an array of an extension type, such as of UUIDs, holds; another array as it is."""
    return getattr(array, 'storage', array)


def _array(column: Any) -> Any:
    """The one array of a column."""
    if not hasattr(column, 'chunks'):
        return column
    arrays = [plain_ids(chunk) for chunk in column.chunks]
    pyarrow = import_module('pyarrow')
    return pyarrow.concat_arrays(arrays) if arrays else pyarrow.nulls(0, id_type(column.type))
