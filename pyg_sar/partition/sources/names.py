"""Names of nodes become the numbers 0 to N - 1, and so do numbers with gaps between them."""

from __future__ import annotations

import mmap
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import Scratch, chunks, edge_chunks, smallest_and_largest


def number(columns: Sequence[Any], scratch: Scratch) -> tuple[list[Tensor], Any]:
    """Numbers the different values of columns, pyarrow's ChunkedArrays in equal chunks.

    Integers are numbered in ascending order; anything else in the order in which it comes first, a
    chunk of every column after another. Gives int64 [n] of every column, in scratch space, and the
    names [N], an Array. Memory: the names, a table of them, and 4 bytes a value.
    """
    pyarrow, compute = import_module('pyarrow'), import_module('pyarrow.compute')
    chunks = [chunk for row in zip(*(c.chunks for c in columns), strict=True) for chunk in row]
    encoded = pyarrow.chunked_array(chunks).dictionary_encode().chunks
    names = encoded[0].dictionary
    new: Any = None
    if pyarrow.types.is_integer(names.type):
        order = compute.sort_indices(names).to_numpy()
        names = names.take(order)
        new = np.empty(len(order), np.int64)
        new[order] = np.arange(len(order))
    numbers = [scratch.empty((len(c),), torch.int64) for c in columns]
    ends = [0] * len(columns)
    for at, chunk in enumerate(encoded):
        column, values = at % len(columns), chunk.indices.to_numpy()
        first, ends[column] = ends[column], ends[column] + len(values)
        numbers[column][first : ends[column]].numpy()[:] = values if new is None else new[values]
    return numbers, names


class TextSpool:
    """Columns of text in chunks, in a file of scratch space that is mapped, or in memory."""

    def __init__(self, scratch: Scratch, num_columns: int) -> None:
        pyarrow = import_module('pyarrow')
        self._schema = pyarrow.schema([(str(at), pyarrow.string()) for at in range(num_columns)])
        folder = scratch.folder  # files without a name, closed with this
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._batches: list[Any] = []
        self._writer = None
        if self._file is not None:
            self._writer = pyarrow.ipc.new_file(
                pyarrow.PythonFile(self._file, mode='w'), self._schema
            )

    def add(self, columns: Iterable[Any]) -> None:
        """Appends an Array of every column, all of one length."""
        batch = import_module('pyarrow').record_batch([*columns], schema=self._schema)
        if self._writer is None:
            self._batches.append(batch)
        else:
            self._writer.write_batch(batch)

    def columns(self) -> list[Any]:
        """The ChunkedArrays."""
        pyarrow = import_module('pyarrow')
        table = pyarrow.Table.from_batches(self._batches, self._schema)
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.flush()
            content = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            table = pyarrow.ipc.open_file(pyarrow.py_buffer(content)).read_all()
        return [*table.columns]

    def close(self) -> None:
        """Gives the file back; columns stay."""
        if self._file is not None:
            self._file.close()


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
        if relabel and 'node_names' not in others:
            got = f'attributes of nodes: {others}' if others else 'none, or several types'
            raise ValueError(f"expected edges without attributes of nodes in '{name}' (got {got})")
        return data
    bounds = [smallest_and_largest(ids) for ids in edges if ids.numel()]
    low, high = (min(b[0] for b in bounds), max(b[1] for b in bounds)) if bounds else (0, 0)
    if data.get('num_nodes') not in (None, high + 1) and not relabel:
        return data
    if not relabel and high < _MOST:
        _tell_gaps(edges, low, high, name)
        return data
    pyarrow = import_module('pyarrow')
    columns = [pyarrow.chunked_array([c.numpy() for c in chunks(ids)]) for ids in edges]
    ids, names = number(columns, scratch)
    data.edge_index = scratch.empty((2, edges.size(1)), torch.int64)
    for row, numbers in zip(data.edge_index, ids, strict=True):
        row[:] = numbers
    data.num_nodes, data.node_names = len(names), names
    warnings.warn(
        f"'{name}': ids from {low} to {high} became 0 to {len(names) - 1}; data.node_names has "
        'them',
        stacklevel=3,
    )
    return data


def _is_of_nodes(data: Data, key: str) -> bool:
    """Whether an attribute may have a row for every node, as it has none for every edge."""
    value: Any = data[key]
    if key in ('edge_index', 'num_nodes') or not hasattr(value, '__len__'):
        return False
    return key in ('x', 'y', 'node_names') or len(value) != data.edge_index.size(1)


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
