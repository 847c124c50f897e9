"""Folders of torch_geometric.distributed's own Partitioner, and folders of plain arrays.

Both may come with the part of every node, which the command line then keeps. PyG's folders hold
the edges of every part and the part of every node, but neither halos nor labels: so they are read
here as a graph, whole and in its original order, and partitioned once more.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner.on_disk.mapped import map_array
from pyg_sar.partitioner.sources.saved import load_saved
from pyg_sar.shard.format import file_names
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey
from pyg_sar.shard.format.files import own_file, read_json

_PARTS = ('part', 'num_parts')


def own_parts(source: str | os.PathLike[str]) -> tuple[Tensor | dict[str, Tensor], int] | None:
    """The part of every node that a source comes with, integer [N] or by type, and their number.

    None of a source without. Raises ValueError if an array of parts is no integer array.
    """
    path = Path(source)
    if not path.is_dir():
        return None
    owners: dict[NodeKey, Tensor] = {}
    if is_pyg_folder(path):
        with _opened(path) as folder:
            owners = {key: folder.node_map(key) for key in folder.node_types}
            num_parts = folder.num_parts
    else:
        files = {n: f for n, f in _npy_files(path).items() if n.split('|')[0] in _PARTS}
        if len(files) < 2 or 'num_parts' not in files:
            return None
        num_parts = int(map_array(files.pop('num_parts')))
        for name, file in files.items():
            owners[name.partition('|')[2] or None] = torch.from_numpy(map_array(file))
    if None in owners:
        return owners[None], num_parts
    return {str(key): part for key, part in owners.items()}, num_parts


def array_files(path: Path) -> dict[str, Path]:
    """The .npy files of a graph in a folder, by name."""
    return {n: f for n, f in _npy_files(path).items() if n.split('|')[0] not in _PARTS}


def _npy_files(path: Path) -> dict[str, Path]:
    return {file.stem: file for file in sorted(path.glob('*.npy'))}


def is_pyg_folder(path: Path) -> bool:
    """Whether a folder was written by torch_geometric.distributed's own Partitioner."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    if not isinstance(content, dict) or not {'num_parts', 'is_hetero'} <= content.keys():
        return False
    # Ours with a damaged META.json would else be read as PyG's, without its labels.
    return 'pyg_sar' not in content and not any(path.glob(f'part_*/{file_names.SAR_FILE}'))


def read_pyg_folder(path: Path, attrs: str | os.PathLike[str] | None) -> Data | HeteroData:
    """The graph of a folder of PyG's own Partitioner, its nodes and edges in their original order.

    `attrs` is a .pt file of what the Partitioner left out: a dict of tensors by name with one row
    per node, or one per edge if ``edge`` is in the name; of a heterogeneous graph a dict of them by
    type of nodes or relation.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file does not hold what PyG writes.
    """
    with _opened(path) as folder:
        data = _graph(folder)
    if attrs is None:
        warnings.warn(
            f"'{path}' was written by torch_geometric.distributed.Partitioner, which stores 'x', "
            "'edge_attr' and times alone: labels, masks, edge weights and all other attributes are "
            'not there (of a heterogeneous graph, nor features that differ in width between '
            'types); --attrs FILE brings them',
            stacklevel=3,
        )
    else:
        _add_attrs(data, Path(attrs))
    return data


@dataclass(frozen=True)
class _PyGFolder:
    root: Path
    num_parts: int
    is_hetero: bool
    node_types: list[NodeKey]
    edge_types: list[EdgeKey]

    def node_map(self, key: NodeKey) -> Tensor:
        """The part of every node."""
        found: Tensor = self._load(file_names.node_map_file(self.root, key))
        return found.long()

    def contents(self, name: str) -> list[dict[Any, Any]]:
        """What the files of a name hold, part by part, by type."""
        folders = [file_names.part_dir(self.root, part) for part in range(self.num_parts)]
        found = [self._load(folder / name) for folder in folders]
        return found if self.is_hetero else [{None: content} for content in found]

    def _load(self, path: Path) -> Any:
        return load_saved(own_file(self.root, path), is_mapped=True)


@contextmanager
def _opened(root: Path) -> Iterator[_PyGFolder]:
    """Files of others hold anything: whatever fails in here is not what PyG writes."""
    try:
        content = read_json(root)
        num_parts, is_hetero = content['num_parts'], bool(content['is_hetero'])
        last = file_names.part_dir(root, num_parts - 1)
        if not last.is_dir():  # the number may be any
            raise FileNotFoundError(f"expected the last part in '{last}' (got no such folder)")
        node_types: list[NodeKey] = [None]
        edge_types: list[EdgeKey] = [None]
        if is_hetero:
            node_types = content['node_types']
            edge_types = [(src, name, dst) for src, name, dst in content['edge_types']]
        yield _PyGFolder(root, num_parts, is_hetero, node_types, edge_types)
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        if isinstance(error, ValueError) and str(root) in str(error):
            raise
        raise ValueError(
            f"expected a folder of torch_geometric.distributed at '{root}' (got {error!r})"
        ) from error


def _graph(folder: _PyGFolder) -> Data | HeteroData:
    data: Any = HeteroData() if folder.is_hetero else Data()
    node_feats = folder.contents(file_names.NODE_FEATS_FILE)
    edge_feats = folder.contents(file_names.EDGE_FEATS_FILE)
    graphs = folder.contents(file_names.GRAPH_FILE)
    for node_key in folder.node_types:
        store = data if node_key is None else data[node_key]
        store.num_nodes = folder.node_map(node_key).numel()
        stored = [feats[node_key] for feats in node_feats if node_key in feats]
        # Of a heterogeneous graph, 'global_id' numbers all types one after another.
        ids = [of_part.get('id', of_part.get('global_id')) for of_part in stored]
        _add_feats(store, stored, ids, store.num_nodes)
        if stored and 'time' in stored[0]:  # that of all nodes
            store.time = stored[0]['time']
    first = 0
    for edge_key in folder.edge_types:
        store = data if edge_key is None else data[edge_key]
        edges = [graph[edge_key] for graph in graphs]
        # PyG numbers the edges of all relations one after another.
        ids = [of_part['edge_id'] - first for of_part in edges]
        num_edges = sum(of_part.numel() for of_part in ids)
        ends = [_in_order(ids, [e[end] for e in edges], num_edges) for end in ('row', 'col')]
        store.edge_index = torch.stack(ends)
        stored = [feats.get(edge_key, {}) for feats in edge_feats]
        ids = [s.get('global_id', own) for s, own in zip(stored, ids, strict=True)]
        _add_feats(store, stored, ids, num_edges)
        if 'edge_time' in stored[0]:
            store.edge_time = _in_order(
                ids, [of_part['edge_time'] for of_part in stored], num_edges
            )
        first += num_edges
    return data


def _add_feats(store: Any, stored: list[dict[str, Any]], ids: list[Tensor], count: int) -> None:
    for name, value in (stored[0].get('feats', {}) if stored else {}).items():
        if value is not None:
            store[name] = _in_order(ids, [of_part['feats'][name] for of_part in stored], count)


def _in_order(ids: list[Tensor], values: list[Tensor], count: int) -> Tensor:
    """The rows of all parts, by their ids: every one below `count` once."""
    found, order = torch.cat(ids).sort()
    if not torch.equal(found, torch.arange(count)):
        raise ValueError(f'expected each id from 0 to {count - 1} once in all parts')
    return torch.cat(values)[order]


def _add_attrs(data: Data | HeteroData, path: Path) -> None:
    content = load_saved(path)
    by_type = content if isinstance(data, HeteroData) else {None: content}
    known = [*data.node_types, *data.edge_types] if isinstance(data, HeteroData) else [None]
    if not isinstance(by_type, dict) or not by_type.keys() <= {*known}:
        raise ValueError(f"expected dicts by type or relation, {known}, in '{path}' (got others)")
    for key, values in by_type.items():
        if not isinstance(values, dict):
            raise ValueError(
                f"expected a dict of tensors in '{path}' (got {type(values).__name__})"
            )
        store: Any = data if key is None else data[key]
        for name, value in values.items():
            of_edges = isinstance(key, tuple) or (key is None and 'edge' in str(name))
            count = store.edge_index.size(1) if of_edges else store.num_nodes
            is_rows = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == count
            if not isinstance(name, str) or name in store or not is_rows:
                raise ValueError(
                    f'expected tensors of {count} {"edges" if of_edges else "nodes"}, by names '
                    f"that the folder lacks, in '{path}' (got {name!r})"
                )
            store[name] = value
