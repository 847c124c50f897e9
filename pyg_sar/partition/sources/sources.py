"""From the name of a graph, or a file, to a PyG Data or HeteroData.

A reader takes a :class:`Source` and gives its graph: :data:`_FILES` has those of files by suffix,
:data:`_NAMES` those of names by how they begin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import MEMORY, Scratch, map_array
from pyg_sar.partition.sources.arrays import array_files, graph_of_arrays, read_npz
from pyg_sar.partition.sources.dataset_class import is_class, load_class
from pyg_sar.partition.sources.ogb import OGB, load_ogb
from pyg_sar.partition.sources.saved import read_saved
from pyg_sar.partition.sources.tables import TABLES, as_csv, read_table, table_files

NAMES = (
    *OGB,
    'a dataset class such as torch_geometric.datasets.Planetoid(name=Cora)',
)
"""Names of graphs that are no files or folders."""


@dataclass(frozen=True)
class Source:
    """The arguments of :func:`load_source`."""

    name: str
    root: str | os.PathLike[str] | None = None
    scratch: Scratch | None = None

    @property
    def path(self) -> Path:
        """The name as that of a file or folder."""
        return Path(self.name)

    @property
    def datasets(self) -> Path:
        """The folder with datasets."""
        return Path(self.root or 'dataset')

    @property
    def space(self) -> Scratch:
        """Where temporary arrays lie."""
        return self.scratch or MEMORY

    def graph(self, arrays: Mapping[str, Any]) -> Data | HeteroData:
        """The graph of arrays by name; in memory with ids of 64 bits, unless they stay on disk."""
        data = graph_of_arrays(arrays, self.name)
        if self.scratch is None:
            for store in data.edge_stores:
                store['edge_index'] = store['edge_index'].to(torch.int64)
        return data


Reader = Callable[[Source], Data | HeteroData]


def load_source(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    scratch: Scratch | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: ``'ogbn-arxiv'`` and the others of
            :data:`~pyg_sar.partition.sources.ogb.OGB`; the path of a dataset class
            with its arguments, ``'torch_geometric.datasets.Planetoid(name=Cora)'``; a .pt file (a
            PyG Data or HeteroData, or a dict of tensors), an .npz file (plain arrays), a folder of
            .npy files (such arrays, a file each; or a file ``edges.parquet`` or ``edges.csv`` in
            place of ``edge_index.npy``), or a .parquet or .csv file (a row per edge) or a folder of
            such.
        root: The folder with datasets; ``dataset`` by default, as for ogb.
        scratch: Where tables and compressed arrays are unpacked. With it tensors are mapped into
            memory and not read, those of .pt files, .npy files and uncompressed .npz files where
            they lie; without, the graph is in memory.
    """
    source = Source(os.fspath(name_or_path), root, scratch)
    path = source.path
    if path.is_file() and path.suffix in _FILES:
        return _FILES[path.suffix](source)
    if _edge_files(path):
        return _folder(source)
    if table_files(path):
        return source.graph(read_table(path, source.space))
    for start, read in _NAMES.items():
        if source.name.startswith(start) and path.suffix not in _FILES:
            return read(source)
    if is_class(source.name) and not path.exists():
        return load_class(source.name, source.datasets)
    what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
    expected = (
        'a .pt, .npz, .parquet or .csv file, a folder with edge_index.npy or with parts of a '
        f'table, or one of {", ".join(NAMES)}'
    )
    if what == 'a file':
        expected = f'its edges as a .csv file with the header src,dst{as_csv(path)}'
    raise ValueError(f"expected a graph to read (got '{source.name}', {what}): {expected}")


def _edge_files(folder: Path) -> list[Path]:
    """The files of edges in a folder of arrays."""
    names = ('edge_index.npy', *(f'edges{suffix}' for suffix in TABLES))
    files = [f for f in map(folder.joinpath, names) if f.is_file() or table_files(f)]
    return files or [f for n, f in array_files(folder).items() if n.startswith('edge|')][:1]


def _folder(source: Source) -> Data | HeteroData:
    edges = _edge_files(source.path)
    if len(edges) > 1:
        names = [file.name for file in edges]
        raise ValueError(f"expected one file of edges in '{source.path}' (got {names})")
    arrays: dict[str, Any] = {n: map_array(file) for n, file in array_files(source.path).items()}
    if source.scratch is None:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    if edges[0].suffix in TABLES:
        arrays.update(read_table(edges[0], source.space))
    return source.graph(arrays)


def _ogb(source: Source) -> Data | HeteroData:
    if source.name not in OGB:
        raise ValueError(f"expected one of {', '.join(OGB)} (got '{source.name}')")
    return load_ogb(source.name, source.datasets, source.space)


_FILES: dict[str, Reader] = {
    '.pt': lambda source: read_saved(source.path, is_mapped=source.scratch is not None),
    '.npz': lambda source: source.graph(read_npz(source.path, scratch=source.scratch)),
    **dict.fromkeys(TABLES, lambda source: source.graph(read_table(source.path, source.space))),
}
_NAMES: dict[str, Reader] = {
    'ogbn-': _ogb,
}
