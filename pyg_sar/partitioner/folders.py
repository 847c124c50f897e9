"""Graphs from folders: of plain arrays, and of torch_geometric.distributed's own Partitioner.

Both may come with the part of every node, which the command line then keeps.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.mapped import map_array
from pyg_sar.partitioner.npz import graph_of_arrays
from pyg_sar.shard.extra import Attrs
from pyg_sar.shard.foreign import ForeignFolder, is_foreign
from pyg_sar.shard.load import read_shard

_PARTS = ('part', 'num_parts')
_NOT_KEPT = ('n_id', 'e_id', 'num_nodes', 'edge_index')


def read_folder(
    path: Path, *, dense: bool = True, attrs: Attrs | None = None
) -> tuple[Data | HeteroData, list[str]]:
    """Reads a graph from a folder.

    Args:
        path: A folder of .npy files, which stay on disk, named as the arrays of an .npz file; or
            one that PyG's own Partitioner wrote.
        dense: Whether a CSR ``x`` becomes a dense tensor; else it becomes a sparse one.
        attrs: What PyG's Partitioner left out; see :func:`pyg_sar.load_shard`.

    Returns:
        The graph, and a description of what is not in it.

    Raises:
        ValueError: If the folder holds no graph.
    """
    if is_foreign(path):
        return _whole(path, attrs), []
    if attrs is not None:
        raise ValueError(
            f"'attrs' applies to folders of torch_geometric.distributed alone (got '{path}')"
        )
    files = _arrays(path)
    if not files:
        raise ValueError(
            f"expected a folder of .npy files or of torch_geometric.distributed in '{path}' (got a "
            'folder of neither)'
        )
    arrays = {name: map_array(file) for name, file in files.items()}
    return graph_of_arrays(arrays, str(path), dense=dense)


def own_parts(source: str | os.PathLike[str]) -> tuple[Tensor | dict[str, Tensor], int] | None:
    """The part of every node that a source comes with.

    Returns:
        The parts, int64 [N] or by type, and their number; None of a source without.

    Raises:
        ValueError: If an array of parts is no integer array.
    """
    path = Path(source)
    if not path.is_dir():
        return None
    if is_foreign(path):
        folder = ForeignFolder(path)
        owners = {key: places.owner for key, places in folder.places.items()}
        num_parts = folder.num_parts
    else:
        files = _arrays(path, parts=True)
        names = [name for name in files if name.split('|')[0] == 'part']
        if not names or 'num_parts' not in files:
            return None
        owners = {}
        for name in names:
            part = torch.from_numpy(map_array(files[name]))
            owners[name.partition('|')[2] or None] = part
        num_parts = int(map_array(files['num_parts']))
    if None in owners:
        return owners[None], num_parts
    return {str(key): part for key, part in owners.items()}, num_parts


def _arrays(path: Path, *, parts: bool = False) -> dict[str, Path]:
    """The arrays of a folder by name: those of the graph, or of its parts."""
    files = {file.stem: file for file in sorted(path.glob('*.npy'))}
    return {name: f for name, f in files.items() if (name.split('|')[0] in _PARTS) == parts}


def _whole(path: Path, attrs: Attrs | None) -> Data | HeteroData:
    """The graph of a folder of PyG's, its nodes and edges in their original order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        loaded = read_shard(path, 0, 1, attrs=attrs)
    for warning in caught:
        lacks = str(warning.message).partition(' Give them ')[0]
        warnings.warn(f'{lacks} --attrs FILE brings them', stacklevel=3)
    is_hetero = isinstance(loaded, HeteroData)
    whole: Any = HeteroData() if is_hetero else Data()
    for key in loaded.node_types if is_hetero else [None]:
        store, target = (loaded, whole) if key is None else (loaded[key], whole[key])
        order = torch.argsort(store.n_id)
        target.num_nodes = order.numel()
        for name, value in store.items():
            if name not in _NOT_KEPT and (is_hetero or 'edge' not in name):
                target[name] = value[order]
    for key in loaded.edge_types if is_hetero else [None]:
        store, target = (loaded, whole) if key is None else (loaded[key], whole[key])
        order = torch.argsort(store.e_id)
        ends = (loaded, loaded) if key is None else (loaded[key[0]], loaded[key[2]])
        rows = store.edge_index.as_subclass(Tensor)[:, order]
        target.edge_index = torch.stack(
            [end.n_id[row] for end, row in zip(ends, rows, strict=True)]
        )
        for name, value in store.items():
            if name not in _NOT_KEPT and (is_hetero or 'edge' in name):
                target[name] = value[order]
    result: Data | HeteroData = whole
    return result
