"""Numbers 0 to N-1 in the place of ids that are names, UUIDs or numbers with gaps.

Batches of ids wait until there are as many as there are names so far; then all are encoded by one
dictionary. So the memory is that of the different ids, twice, and of int32 numbers.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import (
    IndexArray,
    Int64Array,
    Scratch,
    edge_chunks,
    ranges,
    smallest_and_largest,
)
from pyg_sar.shard.format import NODE_NAMES

WAITING = 1 << 22
"""Ids that wait at least before they are encoded."""


class Numbering:
    """Gives numbers to ids, which come in batches of one or more columns, row by row."""

    def __init__(self) -> None:
        self._names: Any = None
        self._waiting: list[Any] = []  # of every batch the columns
        self._numbers: list[IndexArray] = []
        self._num_columns = self._num_waiting = 0

    def add(self, *columns: Any) -> None:
        """The ids of some rows: arrays of one length and type, such as of sources and targets."""
        self._num_columns = len(columns)
        self._waiting += [plain_ids(column) for column in columns]
        self._num_waiting += sum(map(len, columns))
        if self._num_waiting >= max(WAITING, 0 if self._names is None else len(self._names)):
            self._encode()

    def _encode(self) -> None:
        known = [] if self._names is None else [self._names]  # their numbers are their places
        chunked = import_module('pyarrow').chunked_array([*known, *self._waiting])
        encoded = chunked.dictionary_encode().chunks
        self._names = encoded[0].dictionary
        self._numbers += [chunk.indices.to_numpy() for chunk in encoded[len(known) :]]
        self._waiting, self._num_waiting = [], 0

    def edges(self, scratch: Scratch, *, is_sorted: bool) -> tuple[Tensor, Any]:
        """The numbers of two columns as edges, int32 [2, rows] in scratch space; and the ids."""
        numbers, names = self.result(is_sorted=is_sorted)
        edge_index = scratch.empty((2, len(numbers)), torch.int32)
        for start, stop in ranges(len(numbers)):
            edge_index[:, start:stop] = numbers[start:stop].T
        return edge_index, names

    def result(self, *, is_sorted: bool) -> tuple[Tensor, Any]:
        """The numbers, int32 [rows, columns], and the id of every number, a pyarrow Array.

        Numbers are in the order in which ids first come, row by row, or in that of the ids.
        """
        if self._waiting:
            self._encode()
        width = self._num_columns
        numbers = np.empty((sum(map(len, self._numbers[::width])), width), np.int32)
        for column in range(width):
            end = 0
            for part in self._numbers[column::width]:
                numbers[end : end + len(part), column] = part
                end += len(part)
        names, self._names, self._numbers = self._names, None, []
        if is_sorted:
            order = import_module('pyarrow.compute').sort_indices(names).to_numpy()
        else:
            order = _order_of_first(numbers.reshape(-1), len(names))
        place = np.empty(len(names), np.int32)
        place[order] = np.arange(len(names), dtype=np.int32)
        for start, stop in ranges(len(numbers)):
            numbers[start:stop] = place[numbers[start:stop]]
        return torch.from_numpy(numbers), names.take(import_module('pyarrow').array(order))


def number_edges(edge_index: Tensor, scratch: Scratch, *, is_sorted: bool) -> tuple[Tensor, Any]:
    """Edges [2, E] between the numbers of their ids, int32 in scratch space; and the ids."""
    numbering, pyarrow = Numbering(), import_module('pyarrow')
    for _, src, dst in edge_chunks(edge_index):
        numbering.add(pyarrow.array(src.numpy()), pyarrow.array(dst.numpy()))
    return numbering.edges(scratch, is_sorted=is_sorted)


def _order_of_first(numbers: IndexArray, count: int) -> IndexArray:
    """The numbers below `count`, all of which are there, in the order in which they first come."""
    first = np.empty(count, np.int64)
    for start, stop in reversed([*ranges(len(numbers))]):  # of equal ones the last that is written
        first[numbers[start:stop][::-1]] = np.arange(start, stop)[::-1]
    return np.argsort(first)


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


def empty_ids(ids: Any) -> IndexArray:
    """The places of ids that are null, or text without a letter."""
    is_empty = ids.is_null()
    if is_text(id_type(ids.type)):
        ids = plain_ids(ids)
        is_empty = import_module('pyarrow.compute').equal(ids, '').fill_null(True)
    return np.flatnonzero(is_empty.to_numpy(zero_copy_only=False))


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


_MOST = 1 << 32
"""Ids from here on are no numbers of nodes."""


def numbered(
    data: Data | HeteroData, name: str, scratch: Scratch, relabel: bool
) -> Data | HeteroData:
    """The graph with ids from 0 to N - 1 in place of ids with gaps, which are ``node_names``.

    So it is with `relabel`, and with ids of more than 32 bits. A note tells what was done, or that
    most ids have no edge.
    """
    edges = data.get('edge_index') if isinstance(data, Data) else None
    others = [] if edges is None else [key for key in data.to_dict() if _is_of_nodes(data, key)]
    if not isinstance(edges, Tensor) or others:
        if relabel and NODE_NAMES not in others:
            got = f'attributes of nodes: {others}' if others else 'none, or several types'
            raise ValueError(f"expected edges without attributes of nodes in '{name}' (got {got})")
        return data
    bounds = [smallest_and_largest(ids) for ids in edges if ids.numel()]
    low, high = (min(b[0] for b in bounds), max(b[1] for b in bounds)) if bounds else (0, 0)
    if data.get('num_nodes') not in (None, high + 1) and not relabel:
        return data
    if not relabel and low < 0 and high < _MOST:
        raise ValueError(
            f"the edges of '{name}' must hold ids >= 0 (got {low}): --relabel numbers them from 0"
        )
    if not relabel and high < _MOST:
        _tell_gaps(edges, low, high, name)
        return data
    data.edge_index, names = number_edges(edges, scratch, is_sorted=True)
    data.num_nodes, data.node_names = len(names), names
    warnings.warn(
        f"'{name}': ids from {low} to {high} became 0 to {len(names) - 1}; data.node_names has "
        'them',
        stacklevel=3,
    )
    return data


def _is_of_nodes(data: Data, key: str) -> bool:
    """Whether an attribute may have a row for every node, as it has none for every edge."""
    if key in ('edge_index', 'num_nodes'):
        return False
    shape = getattr(data[key], 'shape', ())
    return key in ('x', 'y', NODE_NAMES) or shape[:1] not in ((), (data.edge_index.size(1),))


def _tell_gaps(edges: Tensor, low: int, high: int, name: str) -> None:
    """Warns where more than half of the ids have no edge, or where ids seem to begin at 1."""
    num_nodes = high + 1
    if num_nodes > 4 * edges.size(1):
        found = 'fewer than half'
    else:
        is_there = torch.zeros(num_nodes, dtype=torch.bool)
        for _, src, dst in edge_chunks(edges):
            is_there[src] = is_there[dst] = True
        count = int(is_there.sum())
        found = f'{count:,}' if 2 * count < num_nodes else ''
    if found:
        warnings.warn(
            f"'{name}' has {num_nodes:,} nodes, as {high} is its largest id, and edges at {found} "
            'of them: --relabel numbers those from 0 on',
            stacklevel=4,
        )
    elif low == 1:
        warnings.warn(
            f"the ids of '{name}' begin at 1: node 0 has no edge; --relabel numbers from 0 on",
            stacklevel=4,
        )
