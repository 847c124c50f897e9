"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import files, graphsaint, matrices, matrix_market, metis_files
from pyg_sar.partition.sources.datasets import OGB, is_class, load_class, load_ogb
from pyg_sar.partition.sources.raw import read_raw
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
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: A name of :data:`NAMES`; a .pt file (a PyG Data or HeteroData, a list of them,
            or a dict of tensors), an .npz file (plain arrays, or a sparse matrix), a folder of .npy
            files (such arrays, a file each; or a file ``edges.parquet`` or ``edges.csv`` in place
            of ``edge_index.npy``), a .parquet or .csv file (a row per edge) or a folder of such, a
            Matrix Market file (.mtx), a graph of METIS (.graph, .metis), or a folder of GraphSAINT.
        root: The folder with datasets; ``dataset`` by default, as for ogb.
        scratch: Where tables and compressed arrays are unpacked. With it tensors are mapped into
            memory and not read, those of .pt files, .npy files and uncompressed .npz files where
            they lie; without, the graph is in memory.
        shape: Of a file of edges that is numbers alone: (2, E) or (E, 2).
        dtype: The type of these numbers, such as ``'int32'``.
    """
    name, path = os.fspath(name_or_path), Path(name_or_path)
    space, datasets = scratch or MEMORY, Path(root or 'dataset')
    is_file = path.is_file()
    if (shape is None) != (dtype is None):
        raise ValueError(f"'shape' and 'dtype' must be given together (got {shape} and {dtype})")
    if shape is not None and dtype is not None:
        return _graph(read_raw(path, shape, dtype, is_mapped=scratch is not None), name, scratch)
    if is_file and path.suffix == '.pt':
        return files.read_saved(path, is_mapped=scratch is not None)
    if is_file and path.suffix == '.npz':
        return _graph(matrices.read_npz(path, scratch=scratch), name, scratch)
    if matrix_market.is_mtx(path):
        return _graph(matrix_market.read_mtx(path, space), name, scratch)
    if metis_files.is_metis(path):
        return _graph(metis_files.read_metis(path, space), name, scratch)
    if edges := _edge_files(path):
        return _graph(_folder(path, edges, scratch), name, scratch)
    if graphsaint.is_graphsaint(path):
        return _graph(graphsaint.read_graphsaint(path, scratch), name, scratch)
    if table_files(path):
        return _graph(read_table(path, space), name, scratch)
    if name.startswith('ogbn-') and path.suffix not in ('.pt', '.npz', *TABLES):
        return load_ogb(name, datasets, space)
    if is_class(name) and not path.exists():
        return load_class(name, datasets)
    what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
    expected = (
        'a .pt, .npz, .mtx, .graph, .parquet or .csv file, a folder with edge_index.npy or with '
        f'parts of a table, or one of {", ".join(NAMES)}'
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
