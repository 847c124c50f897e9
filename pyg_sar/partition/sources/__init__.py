"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import files
from pyg_sar.partition.sources.datasets import OGB, is_class, load_class, load_ogb
from pyg_sar.partition.sources.node_tables import NodeTableOptions
from pyg_sar.partition.sources.parts import TABLES, table_files
from pyg_sar.partition.sources.table_graphs import (
    graph_of_tables,
    is_typed_folder,
    read_typed_folder,
    with_wide_ids,
)
from pyg_sar.partition.sources.tables import as_csv, read_table

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
    tables: NodeTableOptions | None = None,
    relabel: bool = False,
) -> Data | HeteroData:
    """Loads a graph by name or from a file.

    Args:
        name_or_path: A name of :data:`NAMES`; a .pt file (a PyG Data or HeteroData, or a dict of
            tensors), an .npz file (plain arrays), a folder of .npy files (such arrays, a file each;
            or a file ``edges.parquet`` or ``edges.csv`` in place of ``edge_index.npy``), or a
            .parquet or .csv file (a row per edge) or a folder of such; or a folder with tables
            ``nodes/TYPE.parquet`` and ``edges/SRC__REL__DST.parquet``.
        root: The folder with datasets; ``dataset`` by default, as for ogb.
        scratch: Where tables and compressed arrays are unpacked. With it tensors are mapped into
            memory and not read, those of .pt files, .npy files and uncompressed .npz files where
            they lie; without, the graph is in memory.
        tables: The table of nodes beside a table of edges, and what columns of such tables are.
        relabel: Whether integer ids of a table of edges are numbered 0 to N-1, in their order.
    """
    name, path = os.fspath(name_or_path), Path(name_or_path)
    space, datasets = scratch or MEMORY, Path(root or 'dataset')
    is_file, given = path.is_file(), tables or NodeTableOptions()
    graph = _of_tables(path, given, space, relabel=relabel)
    if graph is not None:
        return with_wide_ids(graph) if scratch is None else graph
    if given != NodeTableOptions():
        raise ValueError(f"expected a table of edges beside a table of nodes (got '{name}')")
    if relabel:
        raise ValueError(f"expected a table of edges whose ids are numbered (got '{name}')")
    if is_file and path.suffix == '.pt':
        return files.read_saved(path, is_mapped=scratch is not None)
    if is_file and path.suffix == '.npz':
        return _graph(files.read_npz(path, scratch=scratch), name, scratch)
    if edges := _edge_files(path):
        arrays, lists = _folder(path, edges, scratch)
        graph = _graph(arrays, name, scratch)
        graph.stores[0].update(lists)
        return graph
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
    return with_wide_ids(data) if scratch is None else data


def _edge_files(folder: Path) -> list[Path]:
    """The files of edges in a folder of arrays."""
    names = ('edge_index.npy', *(f'edges{suffix}' for suffix in TABLES))
    found = [f for f in map(folder.joinpath, names) if f.is_file() or table_files(f)]
    return found or [f for n, f in files.array_files(folder).items() if n.startswith('edge|')][:1]


def _of_tables(
    path: Path, options: NodeTableOptions, scratch: Scratch, *, relabel: bool
) -> Data | HeteroData | None:
    """The graph of tables alone, such as of ``edges.parquet`` and ``nodes.parquet`` in a folder."""
    if is_typed_folder(path):
        if relabel:
            raise ValueError(
                f"expected no 'relabel' with tables of nodes (got those in '{path / 'nodes'}')"
            )
        return read_typed_folder(path, options, scratch)
    edges = _edge_files(path)
    if len(edges) == 1 and edges[0].suffix in TABLES and not files.array_files(path):
        nodes = _node_files(path)
        if nodes and options.nodes is None:
            options = replace(options, nodes=os.fspath(nodes[0]))
        return graph_of_tables(edges[0], options, scratch, relabel=relabel)
    if edges or not table_files(path):
        return None
    return graph_of_tables(path, options, scratch, relabel=relabel)


def _node_files(folder: Path) -> list[Path]:
    """The tables of nodes in a folder of arrays."""
    return [f for suffix in TABLES if table_files(f := folder / f'nodes{suffix}')]


def _folder(
    path: Path, edges: list[Path], scratch: Scratch | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays in a folder, by name, and names of categories."""
    if len(edges) > 1 or _node_files(path):
        names = [file.name for file in [*edges, *_node_files(path)]]
        raise ValueError(f"expected one file of edges in '{path}' (got {names})")
    arrays: dict[str, Any] = {
        name: files.map_array(file) for name, file in files.array_files(path).items()
    }
    if scratch is None:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    if edges[0].suffix in TABLES:
        columns = read_table(edges[0], scratch or MEMORY)
        if 'node_names' in columns:
            raise ValueError(
                f"expected ids 0 to N-1 in '{edges[0]}', the rows of the .npy files beside it (got "
                'text)'
            )
        arrays.update(columns)
    return arrays, {n: arrays.pop(n) for n in [*arrays] if isinstance(arrays[n], list)}
