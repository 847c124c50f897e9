"""A graph from plain arrays by name, such as those of an .npz file or of a folder of .npy files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.attributes import count_rows
from pyg_sar.partition.graph import checked_edge_index
from pyg_sar.partition.masks import MASKS
from pyg_sar.partition.memmap import Array, Scratch, map_array, tensor_of
from pyg_sar.shard.files import is_of_system, ordinary_file

_FIRST = ('edge_index', 'x', 'y', 'num_nodes', *MASKS)


def read_npz(path: Path, *, scratch: Scratch | None = None) -> dict[str, Array]:
    """The arrays of an .npz file; no pickled object is ever loaded.

    They are mapped where `scratch` is given, those that are compressed from there. Raises
    ValueError if the file is no .npz file, or holds pickled objects.
    """
    ordinary_file(path)
    try:
        if scratch is not None:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            return {name.removesuffix('.npy'): map_array(path, name, scratch) for name in names}
        # numpy does not close a damaged file that it has opened.
        with path.open('rb') as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, Mapping):
                raise ValueError('a single array')
            arrays = {name: archive[name] for name in archive}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError('a member that is no array')
            return arrays
    except Exception as error:  # Damaged archives: errors of numpy, zipfile, zlib, ...
        if is_of_system(error):
            raise
        raise ValueError(
            f"expected an .npz file of plain arrays in '{path}' (got {error!r})"
        ) from error


def array_files(path: Path) -> dict[str, Path]:
    """The .npy files of a graph in a folder, by name."""
    return {file.stem: file for file in sorted(path.glob('*.npy'))}


def graph_of_arrays(arrays: Mapping[str, Array | Tensor], name: str) -> Data | HeteroData:
    """A graph from arrays by name.

    The arrays are ``edge_index`` [2, E]; optionally ``x`` [N, ...]; ``y``; masks, or ``train_idx``,
    ``val_idx`` and ``test_idx``; ``num_nodes``; and any array with one row per node or per edge.
    A number becomes an attribute of the graph.

    Of a heterogeneous graph the name of every array ends in the type it belongs to:
    ``edge|SRC|NAME|DST`` are the edges of a relation, ``y|TYPE`` or ``num_nodes|TYPE`` belong to a
    type of nodes, ``edge_attr|SRC|NAME|DST`` to a relation.

    Args:
        arrays: The arrays, in memory or mapped.
        name: Where they come from, for error messages.
    """
    is_hetero = any(key.startswith('edge|') for key in arrays)
    by_type: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, array in arrays.items():
        what, *of = key.split('|') if is_hetero else [key]
        if what == 'edge' and len(of) == 3:
            what = 'edge_index'
        if len(of) not in (0, 1, 3):
            what, of = key, []
        by_type.setdefault(tuple(of), {})[what] = array
    data: Any = HeteroData() if is_hetero else Data()
    for type_, values in by_type.items():
        store = data[type_[0] if len(type_) == 1 else type_] if type_ else data
        for what in sorted(values, key=lambda what: (*_FIRST, what).index(what)):
            store[what] = _value(values[what], what, name)
        if 'edge_index' in values:
            where = f"{type_} of '{name}'" if type_ else f"'{name}'"
            store['edge_index'] = checked_edge_index(store, where)
    if not is_hetero:
        if 'edge_index' not in data:
            raise ValueError(f"expected the array 'edge_index' in '{name}' (got {sorted(arrays)})")
        data.num_nodes = count_rows(data, data.edge_index)
    return data


def _value(array: Any, key: str, name: str) -> Any:
    """A tensor or a number; an array of something else as it is, which checks name and drop."""
    if isinstance(array, Tensor):
        return array
    if array.ndim == 0 and array.dtype.kind in 'biufc':
        return array.item()
    tensor = tensor_of(array)
    if tensor is None and (key in _FIRST or array.dtype.kind == 'V'):
        hint = ', as of bfloat16: save it as float32' if array.dtype.kind == 'V' else ''
        raise ValueError(f"expected numbers in '{key}' of '{name}' (got {array.dtype}{hint})")
    return array if tensor is None else tensor
