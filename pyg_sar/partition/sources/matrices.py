"""Sparse matrices in .npz files: an entry in row i and column j is an edge from node i to node j.

A matrix that is not square has two types of nodes, 'row' and 'col'.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition import memmap
from pyg_sar.partition.memmap import MEMORY, Array, Scratch
from pyg_sar.partition.sources import files

_PARTS = ('data', 'indices', 'indptr', 'shape', 'row', 'col', 'format', '_is_array')

_Entries = tuple[Tensor, Array | None, tuple[int, int]]
"""Rows and columns [2, E], values [E] or None where all are one, and the shape."""


def read_npz(path: Path, *, scratch: Scratch | None = None) -> dict[str, Any]:
    """The arrays of an .npz file; those of a graph in place of a sparse matrix.

    Such matrices are those of scipy.sparse.save_npz, and ``adj_data``, ``adj_indices``,
    ``adj_indptr`` and ``adj_shape``, with features in ``attr_...`` and classes in ``labels``.
    """
    names, space = files.npz_names(path), scratch or MEMORY
    is_saved = {'format', 'shape'} <= names
    is_named = not is_saved and {'adj_indptr', 'adj_shape'} <= names
    if 'edge_index' in names or not (is_saved or is_named):
        return files.read_npz(path, scratch=scratch)
    arrays: dict[str, Any] = files.read_npz(path, scratch=scratch, with_objects=False)
    if left_out := sorted(names - set(arrays)):
        warnings.warn(
            f"left out of '{path}', as they hold objects of Python: {', '.join(left_out)}",
            stacklevel=2,
        )
    prefixes = ('',) if is_saved else ('adj_', 'attr_')
    index, values, shape = read_entries(arrays, path, space, prefixes[0])
    out = by_name(index, values, shape, path)
    if is_named and 'attr_indptr' in arrays:
        out['x'] = _dense(read_entries(arrays, path, MEMORY, 'attr_'), space)
    used = {prefix + part for prefix in prefixes for part in _PARTS}
    given = {'attr_matrix': 'x', 'labels': 'y'} if is_named else {}
    out.update((given.get(name, name), arrays[name]) for name in arrays if name not in used)
    if shape[0] != shape[1] and not {'x', 'y'}.isdisjoint(out):
        raise ValueError(
            f"expected a square matrix in '{path}', as it has features or classes (got {shape})"
        )
    return out


def read_entries(
    arrays: dict[str, Array], path: Path, scratch: Scratch, prefix: str = ''
) -> _Entries:
    """The entries of a matrix in CSR, CSC or COO format, whose arrays have names with a prefix."""
    layout = 'csr' if prefix else np.asarray(arrays.get('format', '')).tolist()
    layout = layout.decode('ascii', 'replace') if isinstance(layout, bytes) else layout
    if layout not in ('csr', 'csc', 'coo'):
        raise ValueError(
            f"expected a matrix of format csr, csc or coo in '{path}' (got {layout!r}): "
            'scipy.sparse.save_npz(path, matrix.tocsr()) writes one'
        )
    shape = _shape(arrays, prefix, path)
    names = ('row', 'col') if layout == 'coo' else ('indices', 'indptr')
    first, second = (_integers(arrays, prefix + name, path) for name in names)
    values, count = arrays.get(f'{prefix}data'), len(first)
    if values is not None and (values.shape != (count,) or values.dtype.kind not in 'biuf'):
        raise ValueError(
            f"expected {count} real numbers in '{prefix}data' of '{path}' (got {values.dtype} "
            f'{list(values.shape)})'
        )
    if layout != 'coo':
        _check_indptr(second, shape[layout == 'csc'], count, f"'{prefix}indptr' of '{path}'")
    elif len(second) != count:
        raise ValueError(
            f"expected as many numbers in 'col' as in 'row' of '{path}' (got {len(second)} and "
            f'{count})'
        )
    index = scratch.empty((2, count), torch.from_numpy(first[:0].copy()).dtype)
    ends = index.numpy()
    ends = ends[::-1] if layout == 'csr' else ends  # which of them is listed
    for start, stop in memmap.ranges(count):
        ends[0, start:stop] = first[start:stop]
        is_coo = layout == 'coo'
        ends[1, start:stop] = second[start:stop] if is_coo else _compressed(second, start, stop)
        for ids, what, size in zip(index[:, start:stop], ('rows', 'columns'), shape, strict=True):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= size:
                raise ValueError(
                    f"expected {what} in [0, {size}) in '{path}' (got {low if low < 0 else high})"
                )
    if values is not None and all((v == 1).all() for v in _pieces(values)):
        values = None
    return index, values, shape


def _pieces(values: Array) -> list[Array]:
    return [values[start:stop] for start, stop in memmap.ranges(len(values))]


def _compressed(indptr: Array, start: int, stop: int) -> Array:
    """The rows of a range of the entries of a CSR matrix."""
    low = int(np.searchsorted(indptr, start, 'right')) - 1
    high = int(np.searchsorted(indptr, stop, 'left'))
    ends = np.clip(np.asarray(indptr[low : high + 1], np.int64), start, stop)
    return np.repeat(np.arange(low, high), np.diff(ends))


def _shape(arrays: dict[str, Array], prefix: str, path: Path) -> tuple[int, int]:
    shape = arrays.get(f'{prefix}shape', np.empty(0))
    if shape.shape != (2,) or shape.dtype.kind not in 'iu' or (shape < 0).any():
        got = shape.tolist()
        raise ValueError(f"expected two sizes in '{prefix}shape' of '{path}' (got {got})")
    return int(shape[0]), int(shape[1])


def _integers(arrays: dict[str, Array], name: str, path: Path) -> Array:
    array = arrays.get(name)
    if array is None or array.ndim != 1 or array.dtype.kind not in 'iu':
        got = 'no such array' if array is None else f'{array.dtype} {list(array.shape)}'
        raise ValueError(f"expected a list of integers in '{name}' of '{path}' (got {got})")
    return array if array.dtype.kind == 'i' and array.dtype.isnative else array.astype(np.int64)


def _check_indptr(indptr: Array, rows: int, entries: int, where: str) -> None:
    is_right = len(indptr) == rows + 1 and indptr[0] == 0 and indptr[-1] == entries
    if not is_right or any(
        (np.diff(indptr[start : stop + 1]) < 0).any() for start, stop in memmap.ranges(rows)
    ):
        got = f'{len(indptr)} numbers'
        got += f' from {indptr[0]} to {indptr[-1]}' if len(indptr) else ''
        raise ValueError(
            f'expected {rows + 1} numbers that rise from 0 to {entries} in {where} (got {got})'
        )


def _dense(entries: _Entries, scratch: Scratch) -> Tensor:
    """A matrix as dense float32 features; entries at one place are added up."""
    (row, col), values, shape = entries
    x = scratch.empty(shape, torch.float32)
    x.zero_()
    for start, stop in memmap.ranges(len(row)):
        part = np.ones(stop - start) if values is None else values[start:stop]
        at = row[start:stop].long(), col[start:stop].long()
        x.index_put_(at, torch.from_numpy(part.astype(np.float32)), accumulate=True)
    return x


def by_name(
    index: Tensor, values: Array | None, shape: tuple[int, int], path: Path
) -> dict[str, Any]:
    """The arrays of the graph of a matrix, which has one type of nodes if the matrix is square."""
    zeros = sum(int(np.count_nonzero(v == 0)) for v in _pieces(values)) if values is not None else 0
    if zeros:
        warnings.warn(
            f"'{path}' has entries that are 0 ({zeros}): they are edges with an edge_weight of 0",
            stacklevel=2,
        )
    rows, cols = shape
    if rows == cols:
        out: dict[str, Any] = {'edge_index': index, 'num_nodes': np.array(rows)}
        return out if values is None else {**out, 'edge_weight': values}
    sizes = {'num_nodes|row': np.array(rows), 'num_nodes|col': np.array(cols)}
    out = {'edge|row|to|col': index, **sizes}
    return out if values is None else {**out, 'edge_weight|row|to|col': values}
