"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import files
from pyg_sar.partition.sources.datasets import OGB, is_class, load_class, load_ogb
from pyg_sar.partition.sources.edge_text import SUFFIXES, read_edge_text
from pyg_sar.partition.sources.konect import konect_file, read_konect
from pyg_sar.partition.sources.names import numbered
from pyg_sar.partition.sources.tables import TABLES, read_table, table_files
from pyg_sar.partition.sources.text_lines import text_suffix
from pyg_sar.shard.format import NODE_NAMES

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
    relabel: bool = False,
    on_part: Callable[[float], None] = lambda _: None,
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
        relabel: Whether ids, which may have gaps, become 0 to N - 1. Text and ids of more than 32
            bits do in any case.
        on_part: Told which part of a file of text has been read, from 0 to 1.
    """
    name, path = os.fspath(name_or_path), Path(name_or_path)
    space, datasets = scratch or MEMORY, Path(root or 'dataset')

    def graph(arrays: dict[str, Any]) -> Data | HeteroData:
        return numbered(_graph(arrays, name, scratch), name, space, relabel)

    is_file = path.is_file()
    if is_file and path.suffix == '.pt':
        return numbered(files.read_saved(path, is_mapped=scratch is not None), name, space, relabel)
    if konect := konect_file(path):
        return read_konect(konect, space, on_part)
    if is_file and path.suffix == '.npz':
        return graph(files.read_npz(path, scratch=scratch))
    if edges := _edge_files(path):
        return graph(_folder(path, edges, scratch))
    if texts := edge_texts(path):
        return graph(_edge_list(texts, name, space, relabel, on_part))
    if table_files(path):
        return graph(read_table(path, space))
    if name.startswith('ogbn-') and path.suffix not in ('.pt', '.npz', *TABLES):
        return load_ogb(name, datasets, space)
    if is_class(name) and not path.exists():
        return load_class(name, datasets)
    what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
    expected = (
        'a .pt, .npz or .parquet file, a list of edges as text (.txt, .tsv, .csv, .edges, also '
        '.gz), a folder with edge_index.npy or with parts of a table, or one of '
        f'{", ".join(NAMES)}'
    )
    raise ValueError(f"expected a graph to read (got '{name}', {what}): {expected}")


def edge_texts(path: Path) -> list[Path]:
    """The files of a list of edges as text: itself, or the .csv parts in a folder."""
    if path.is_file():
        return [path] if text_suffix(path) in SUFFIXES else []
    files = table_files(path)
    return files if all(file.suffix == '.csv' for file in files) else []


def _edge_list(
    texts: list[Path],
    name: str,
    scratch: Scratch,
    relabel: bool,
    on_part: Callable[[float], None] = lambda _: None,
) -> dict[str, Any]:
    """The arrays of a list of edges; a note tells how it was read."""
    try:
        found = read_edge_text(texts, scratch, on_part)
    except ValueError:
        if not relabel:
            raise
        found = read_edge_text(texts, scratch, on_part, has_names=True)
    arrays, told = (
        found.arrays,
        [f'{found.num_comments:,} comment lines'] * (found.num_comments > 0),
    )
    columns = ', '.join(column for column in arrays if column not in ('edge_index', NODE_NAMES))
    if found.header is None and columns:
        told.append(f'no header: columns beside the ids are {columns}')
    if NODE_NAMES in arrays:
        told.append(f'{len(arrays[NODE_NAMES]):,} names of nodes')
    if told:
        warnings.warn(f"'{name}' has {'; '.join(told)}", stacklevel=3)
    return found.arrays


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
        space = scratch or MEMORY
        texts = edge_texts(edges[0])
        arrays.update(
            _edge_list(texts, str(path), space, False) if texts else read_table(edges[0], space)
        )
    return arrays
