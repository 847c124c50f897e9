"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import files
from pyg_sar.partition.sources.datasets import OGB, is_class, load_class, load_ogb
from pyg_sar.partition.sources.tables import TABLES, as_csv, read_table, table_files

NAMES = (
    *OGB,
    'a dataset class such as torch_geometric.datasets.Planetoid(name=Cora)',
)
"""Names of graphs that are no files or folders."""


def load_source(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    scratch: Scratch | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: A name of :data:`NAMES`; a .pt file (a PyG Data or HeteroData, or a dict of
            tensors), an .npz file (plain arrays), a folder of .npy files (such arrays, a file each;
            or a file ``edges.parquet`` or ``edges.csv`` in place of ``edge_index.npy``), or a
            .parquet or .csv file (a row per edge) or a folder of such.
        root: The folder with datasets; ``dataset`` by default, as for ogb.
        scratch: Where tables and compressed arrays are unpacked. With it tensors are mapped into
            memory and not read, those of .pt files, .npy files and uncompressed .npz files where
            they lie; without, the graph is in memory.
    """
    name, path = os.fspath(name_or_path), Path(name_or_path)
    space, datasets = scratch or MEMORY, Path(root or 'dataset')
    is_file = path.is_file()
    if is_file and path.suffix == '.pt':
        return files.read_saved(path, is_mapped=scratch is not None)
    if is_file and path.suffix == '.npz':
        return _graph(files.read_npz(path, scratch=scratch), name, scratch)
    if edges := _edge_files(path):
        return _graph(_folder(path, edges, scratch), name, scratch)
    if table_files(path):
        return _graph(read_table(path, space), name, scratch)
    if name.startswith('ogbn-') and path.suffix not in ('.pt', '.npz', *TABLES):
        return load_ogb(name, datasets, space)
    if is_class(name) and not path.exists():
        return load_class(name, datasets)
    what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
    expected = (
        'a .pt, .npz, .parquet or .csv file, a folder with edge_index.npy or with parts of a '
        f'table, or one of {", ".join(NAMES)}'
    )
    if what == 'a file':
        expected = f'its edges as a .csv file with the header src,dst{as_csv(path)}'
    raise ValueError(f"expected a graph to read (got '{name}', {what}): {expected}")


def _graph(arrays: Any, name: str, scratch: Scratch | None) -> Data | HeteroData:
    """The graph of arrays; in memory with ids of 64 bits, unless they stay on disk."""
    data = files.graph_of_arrays(arrays, name)
    for store in data.edge_stores if scratch is None else ():
        store['edge_index'] = store['edge_index'].to(torch.int64)
    return data


def _edge_files(folder: Path) -> list[Path]:
    """The files of edges in a folder of arrays."""
    names = ('edge_index.npy', *(f'edges{suffix}' for suffix in TABLES))
    found = [f for f in map(folder.joinpath, names) if f.is_file() or table_files(f)]
    return found or [f for n, f in files.array_files(folder).items() if n.startswith('edge|')][:1]


def _folder(path: Path, edges: list[Path], scratch: Scratch | None) -> dict[str, Any]:
    """The arrays in a folder, by name."""
    if len(edges) > 1:
        names = [file.name for file in edges]
        raise ValueError(f"expected one file of edges in '{path}' (got {names})")
    arrays: dict[str, Any] = {
        name: files.map_array(file) for name, file in files.array_files(path).items()
    }
    if scratch is None:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    if edges[0].suffix in TABLES:
        arrays.update(read_table(edges[0], scratch or MEMORY))
    return arrays
