"""A graph from plain arrays, such as those of an .npz file."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.graph.attributes import count_rows
from pyg_sar.partitioner.graph.checks import checked_edge_index
from pyg_sar.partitioner.graph.split import INDICES, MASKS, mask_of_index
from pyg_sar.partitioner.on_disk.mapped import Array, map_array
from pyg_sar.shard.format.files import ordinary_file

_CSR = ('x_data', 'x_indices', 'x_indptr', 'x_shape')
_NUMPY_KINDS = 'biufc'
_WORTH_MAPPING = 1 << 26


def read_npz(
    file: IO[bytes] | Path, name: str, *, is_mapped: bool = False
) -> tuple[Data | HeteroData, list[str]]:
    """Reads a graph from the arrays of an .npz file; see :func:`graph_of_arrays`.

    No pickled object is ever loaded. With `is_mapped`, uncompressed arrays are mapped and not read,
    which takes a path, and a CSR ``x`` becomes a sparse tensor and not a dense one.

    Raises:
        ValueError: If the file is no .npz file, holds pickled objects, or its arrays do not fit
            together.
    """
    if isinstance(file, Path):
        ordinary_file(file)
    try:
        arrays = _map_members(file) if isinstance(file, Path) and is_mapped else _load(file)
    except Exception as error:  # Damaged archives: errors of numpy, zipfile, zlib, ...
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ValueError(
            f"expected an .npz file of plain arrays in '{name}' (got {error!r})"
        ) from error
    return graph_of_arrays(arrays, name, is_mapped=is_mapped)


def graph_of_arrays(
    arrays: dict[str, Array], name: str, *, is_mapped: bool = False
) -> tuple[Data | HeteroData, list[str]]:
    """A graph from arrays by name.

    The arrays are ``edge_index`` [2, E]; optionally ``x`` [N, ...] or the parts of a CSR matrix,
    ``x_data``, ``x_indices``, ``x_indptr`` and ``x_shape``; ``y``; masks, or ``train_idx``,
    ``val_idx`` and ``test_idx``; ``num_nodes``; and any array with one row per node or per edge.
    A number becomes an attribute of the graph.

    Of a heterogeneous graph the name of every array ends in the type it belongs to:
    ``edge|SRC|NAME|DST`` are the edges of a relation, ``y|TYPE`` or ``num_nodes|TYPE`` belong to a
    type of nodes, ``edge_attr|SRC|NAME|DST`` to a relation. A CSR ``x`` has the parts
    ``x|TYPE_data`` and so on.

    Args:
        arrays: The arrays, in memory or mapped; emptied of what is used.
        name: Where they come from, for error messages.
        is_mapped: Whether a CSR ``x`` stays sparse.

    Returns:
        The graph, and a description of every array that is not in it.

    Raises:
        ValueError: If the arrays do not fit together.
    """
    if any(key.startswith('edge|') for key in arrays):
        return _hetero_data(arrays, name, is_mapped=is_mapped)
    if 'edge_index' not in arrays:
        raise ValueError(f"expected the array 'edge_index' in '{name}' (got {sorted(arrays)})")

    data = Data()
    if any(key in arrays for key in _CSR):
        data.x = _csr_features(arrays, name, is_mapped=is_mapped)
    for key in ('edge_index', 'x', 'y', 'num_nodes', *MASKS):
        if key in arrays:
            data[key] = _value(arrays.pop(key), key, name)
    data.edge_index = checked_edge_index(data, f"'{name}'")
    num_nodes, num_edges = count_rows(data, data.edge_index), data.edge_index.size(1)
    data.num_nodes = num_nodes
    for key, mask in INDICES.items():
        if key in arrays:
            if mask in data:
                raise ValueError(f"expected one of '{key}' and '{mask}' in '{name}' (got both)")
            ids = _value(arrays.pop(key), key, name)
            data[mask] = mask_of_index(ids, num_nodes, key, f" of '{name}'")

    dropped = []
    for key, array in arrays.items():
        if array.dtype.kind in _NUMPY_KINDS and (
            array.ndim == 0
            or (array.shape[0] in (num_nodes, num_edges) and not key.startswith('edge_index'))
        ):
            data[key] = _value(array, key, name)
        else:
            dropped.append(f'{key} ({array.dtype} {list(array.shape)})')
    return data, dropped


def _load(file: IO[bytes] | Path) -> dict[str, Array]:
    with np.load(file, allow_pickle=False) as archive:
        if not isinstance(archive, Mapping):
            raise ValueError('a single array')
        return {key: archive[key] for key in archive}


def _map_members(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    arrays = {info.filename.removesuffix('.npy'): info for info in members}
    compressed = [
        key
        for key, info in arrays.items()
        if info.compress_type != zipfile.ZIP_STORED and info.file_size > _WORTH_MAPPING
    ]
    if compressed:
        warnings.warn(
            f"read into memory as a whole, since compressed in '{path}': {', '.join(compressed)} "
            '(np.savez and a folder of .npy files leave arrays on disk)',
            stacklevel=4,
        )
    return {key: map_array(path, info.filename) for key, info in arrays.items()}


def _hetero_data(
    arrays: dict[str, Any], name: str, *, is_mapped: bool
) -> tuple[HeteroData, list[str]]:
    by_type: dict[tuple[str, ...], dict[str, Any]] = {}
    dropped = []
    for key, array in arrays.items():
        what, *of = key.split('|')
        if what == 'edge' and len(of) == 3:
            what = 'edge_index'
        for part in _CSR:
            if what == 'x' and len(of) == 1 and of[0].endswith(part[1:]):
                what, of = part, [of[0].removesuffix(part[1:])]
        if len(of) in (1, 3) and array.dtype.kind in _NUMPY_KINDS:
            by_type.setdefault(tuple(of), {})[what] = array
        else:
            dropped.append(f'{key} ({array.dtype} {list(array.shape)})')
    data = HeteroData()
    for type_, values in by_type.items():
        store = data[type_[0] if len(type_) == 1 else type_]
        if any(part in values for part in _CSR):
            store['x'] = _csr_features(values, name, is_mapped=is_mapped)
        for what, array in values.items():
            store[what] = _value(array, what, name)
        if 'edge_index' in values:
            store['edge_index'] = checked_edge_index(store, f"{type_} of '{name}'")
    return data, dropped


def _value(array: np.ndarray[Any, Any], key: str, name: str) -> Any:
    if array.dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"expected numbers in '{key}' of '{name}' (got {array.dtype})")
    if array.ndim == 0:
        return array.item()
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder('='), copy=False))
    except TypeError as error:  # of numbers that torch has not, such as np.longdouble
        raise ValueError(
            f"expected numbers that torch has in '{key}' of '{name}' (got {array.dtype})"
        ) from error


def _csr_features(arrays: dict[str, Any], name: str, *, is_mapped: bool) -> Tensor:
    if 'x' in arrays or not all(key in arrays for key in _CSR):
        got = sorted(key for key in arrays if key == 'x' or key in _CSR)
        raise ValueError(f"expected either 'x' or all of {list(_CSR)} in '{name}' (got {got})")
    data, indices, indptr, shape = (arrays.pop(key) for key in _CSR)
    if shape.shape != (2,) or indptr.shape != (int(shape[0]) + 1,) or data.shape != indices.shape:
        raise ValueError(
            f"expected a CSR matrix in {list(_CSR)} of '{name}' (got shapes {list(data.shape)}, "
            f'{list(indices.shape)}, {list(indptr.shape)} and the shape {shape.tolist()})'
        )
    if any(array.dtype.kind not in 'iu' for array in (indices, indptr, shape)):
        raise ValueError(f"expected integers in {list(_CSR[1:])} of '{name}' (got other numbers)")
    num_rows, num_columns = (int(size) for size in shape)
    counts = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != data.size or (counts < 0).any():
        raise ValueError(f"'x_indptr' of '{name}' must ascend from 0 to {data.size}")
    if data.size and not 0 <= int(indices.min()) <= int(indices.max()) < num_columns:
        raise ValueError(
            f"'x_indices' of '{name}' must lie in [0, {num_columns}) "
            f'(got {int(indices.min())} to {int(indices.max())})'
        )
    rows = np.repeat(np.arange(num_rows), counts)
    x = torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([rows, indices.astype(np.int64)])),
        torch.from_numpy(data),
        (num_rows, num_columns),
        check_invariants=False,
    )
    try:
        return x if is_mapped else x.to_dense()
    except RuntimeError as error:
        raise ValueError(
            f"'x_shape' of '{name}' must be one whose dense matrix fits into memory "
            f'(got {num_rows} x {num_columns})'
        ) from error
