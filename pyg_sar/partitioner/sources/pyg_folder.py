"""Folders of plain arrays, and of torch_geometric.distributed's own Partitioner.

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

from pyg_sar.partitioner.on_disk.mapped import map_array
from pyg_sar.shard.read.foreign import ForeignFolder, is_foreign
from pyg_sar.shard.read.read_shard import read_shard
from pyg_sar.shard.read.whole_graph_attrs import Attrs

_PARTS = ('part', 'num_parts')
_NOT_KEPT = ('n_id', 'e_id', 'num_nodes', 'edge_index')


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
        files = array_files(path, of_parts=True)
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


def array_files(path: Path, *, of_parts: bool = False) -> dict[str, Path]:
    """The .npy files of a folder by name: those of the graph, or of its parts."""
    files = {file.stem: file for file in sorted(path.glob('*.npy'))}
    return {name: f for name, f in files.items() if (name.split('|')[0] in _PARTS) == of_parts}


def read_foreign(path: Path, attrs: Attrs | None) -> Data | HeteroData:
    """The graph of a folder of PyG's own Partitioner, its nodes and edges in their original order.

    Args:
        path: The folder.
        attrs: What the Partitioner left out; see :func:`pyg_sar.load_shard`.
    """
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
