"""From the name of a graph, or a file, to a PyG Data or HeteroData."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.graph import with_wide_ids
from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources import files, graphsaint, matrices, matrix_market, metis_files
from pyg_sar.partition.sources.datasets import OGB, is_class, load_class, load_ogb
from pyg_sar.partition.sources.edge_text import edge_list, edge_texts
from pyg_sar.partition.sources.konect import konect_file, read_konect
from pyg_sar.partition.sources.names import numbered
from pyg_sar.partition.sources.node_tables import NodeTableOptions
from pyg_sar.partition.sources.parts import TABLES, table_files
from pyg_sar.partition.sources.raw import read_raw
from pyg_sar.partition.sources.table_graphs import (
    graph_of_edges,
    graph_of_tables,
    is_typed_folder,
    read_typed_folder,
)
from pyg_sar.partition.sources.tables import read_table
from pyg_sar.partition.sources.unread import check_all_read
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
    tables: NodeTableOptions | None = None,
    relabel: bool = False,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Data | HeteroData:
    """Loads a graph by name or from a file; docs/partitioning.md lists what it may be.

    Args:
        name_or_path: A name of :data:`NAMES`, a file or a folder.
        root: The folder with datasets; ``dataset`` by default, as for ogb.
        scratch: Where text, tables and compressed arrays are unpacked. With it tensors are mapped
            into memory and not read, those of .pt files, .npy files and uncompressed .npz files
            where they lie; without, the graph is in memory.
        tables: The table of nodes beside a table of edges, and what columns of such tables are.
        relabel: Whether ids of edges, which may have gaps, become 0 to N - 1. Text and ids of more
            than 32 bits do in any case.
        shape: Of a file of edges that is numbers alone: (2, E) or (E, 2).
        dtype: The type of these numbers, such as ``'int32'``.
    """
    path, given = Path(name_or_path), tables or NodeTableOptions()
    name, space = os.fspath(name_or_path), scratch or MEMORY
    if (shape is None) != (dtype is None):
        raise ValueError(f"'shape' and 'dtype' must be given together (got {shape} and {dtype})")
    edges = path if path.is_file() and edge_texts(path) else _table_alone(path)
    nodes = _node_files(path) if edges not in (None, path) and given.nodes is None else []
    if nodes:
        given = replace(given, nodes=os.fspath(nodes[0]))
    if path.is_dir():
        check_all_read(path, _files_read(path, edges, given))
    if is_typed_folder(path) or (edges is not None and given != NodeTableOptions()):
        if relabel:
            raise ValueError(
                "expected no 'relabel' beside a table of nodes, whose rows number them (got "
                f"'{path}')"
            )
        if edges is None:
            return _in_memory(read_typed_folder(path, given, space), scratch)
        return _in_memory(graph_of_tables(edges, given, space), scratch)
    if given != NodeTableOptions():
        raise ValueError(
            f"expected a table of edges beside a table of nodes (got '{path}'): a .parquet file, a "
            'list of edges as text, or a folder of such'
        )

    def graph(data: Data | HeteroData, *, is_sized: bool = False) -> Data | HeteroData:
        """What is given back; `is_sized` says that the file tells the number of nodes."""
        data = _in_memory(data, scratch)
        return data if is_sized and not relabel else numbered(data, name, space, relabel)

    def of_arrays(arrays: Mapping[str, Any]) -> Data | HeteroData:
        return graph(files.graph_of_arrays(arrays, name), is_sized='num_nodes' in arrays)

    is_file = path.is_file()
    if shape is not None and dtype is not None:
        return of_arrays(read_raw(path, shape, dtype, is_mapped=scratch is not None))
    if is_file and path.suffix == '.pt':
        data = files.read_saved(path, is_mapped=scratch is not None)
        return graph(data, is_sized='num_nodes' in data)
    if konect := konect_file(path):
        return graph(read_konect(konect, space), is_sized=True)
    if is_file and path.suffix == '.npz':
        return of_arrays(matrices.read_npz(path, scratch=scratch))
    if matrix_market.is_mtx(path):
        return of_arrays(matrix_market.read_mtx(path, space))
    if metis_files.is_metis(path):
        return of_arrays(metis_files.read_metis(path, space))
    if texts := edge_texts(edges):
        return graph(graph_of_edges(edge_list(texts, space, relabel=relabel), path))
    if edges is not None:
        return graph(graph_of_tables(edges, NodeTableOptions(), space))
    if _edge_files(path):
        return graph(_folder(path, scratch))
    if graphsaint.is_graphsaint(path):
        return of_arrays(graphsaint.read_graphsaint(path, scratch))
    if relabel:
        raise ValueError(f"expected a file of edges to relabel (got '{name}')")
    return _of_dataset(name, Path(root or 'dataset'), space)


def _of_dataset(name: str, datasets: Path, scratch: Scratch) -> Data | HeteroData:
    path = Path(name)
    if name.startswith('ogbn-') and path.suffix not in ('.pt', '.npz', *TABLES):
        return load_ogb(name, datasets, scratch)
    if is_class(name) and not path.exists():
        return load_class(name, datasets)
    what = 'a folder' if path.is_dir() else 'a file' if path.exists() else 'no such file'
    raise ValueError(
        f"expected a graph to read (got '{name}', {what}): a .pt, .npz, .mtx, .graph or .parquet "
        'file, a list of edges as text (.txt, .tsv, .csv, .edges, also .gz), a folder with '
        f'edge_index.npy or with parts of a table, or one of {", ".join(NAMES)}'
    )


def _in_memory(data: Data | HeteroData, scratch: Scratch | None) -> Data | HeteroData:
    """The graph with ids of 64 bits, unless it stays on disk."""
    return with_wide_ids(data) if scratch is None else data


def _table_alone(path: Path) -> Path | None:
    """A table of edges: `path`, or ``edges.parquet``, ``edges.csv``, ... in it, with no arrays."""
    edges = _edge_files(path)
    if len(edges) == 1 and edges[0].suffix != '.npy' and not files.array_files(path):
        return edges[0]
    if edges or not (parts := table_files(path)):
        return None
    if of_nodes := [part.name for part in parts if path.is_dir() and _OF_NODES.match(part.name)]:
        others = sorted({entry.name for entry in path.glob('[!._]*')} - {*of_nodes})
        raise ValueError(
            f"expected edges.csv, edges.txt or edges.parquet beside {of_nodes} in '{path}' (got "
            f'{others}): rename the file of the edges'
        )
    if len({re.sub('[0-9]', '', part.name) for part in parts}) > 1:
        names = ', '.join(part.name for part in parts[:5])
        warnings.warn(f"'{path}' is read as one table of {len(parts)} parts: {names}", stacklevel=3)
    return path


_OF_NODES = re.compile('node|vert(ex|ices)', re.IGNORECASE)


def _edge_files(folder: Path) -> list[Path]:
    """The files of edges in a folder of arrays."""
    array = folder / 'edge_index.npy'
    found = [array] if array.is_file() else []
    found += [f for f in sorted(folder.glob('edges.*')) if table_files(f) or edge_texts(f)]
    return found or [f for n, f in files.array_files(folder).items() if n.startswith('edge|')][:1]


def _node_files(folder: Path) -> list[Path]:
    """The tables of nodes in a folder."""
    return [f for suffix in TABLES if table_files(f := folder / f'nodes{suffix}')]


def _files_read(path: Path, edges: Path | None, given: NodeTableOptions) -> list[Path]:
    """The files that are read of a folder."""
    if is_typed_folder(path):
        tables = [*path.glob('nodes/*'), *path.glob('edges/*')]
    elif edges is not None:
        tables = [edges, *([] if given.nodes is None else [Path(given.nodes)])]
    elif konect := konect_file(path):
        tables = [konect]
    elif found := _edge_files(path):
        tables = [*found, *_node_files(path), *files.array_files(path).values()]
    elif graphsaint.is_graphsaint(path):
        tables = [*map(path.joinpath, graphsaint.FILES)]
    else:
        return [*path.glob('*')]  # of which an error tells
    return [file for table in tables for file in table_files(table) or edge_texts(table) or [table]]


def _folder(path: Path, scratch: Scratch | None) -> Data | HeteroData:
    """The graph of the arrays in a folder, with its edges in an array or a table."""
    edges, space = _edge_files(path), scratch or MEMORY
    if len(edges) > 1 or _node_files(path):
        names = [file.name for file in [*edges, *_node_files(path)]]
        raise ValueError(f"expected one file of edges in '{path}' (got {names})")
    arrays: dict[str, Any] = {
        name: files.map_array(file) for name, file in files.array_files(path).items()
    }
    if scratch is None:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    if edges[0].suffix != '.npy':
        texts = edge_texts(edges[0])
        columns = edge_list(texts, space) if texts else read_table(edges[0], space)
        if NODE_NAMES in columns:
            raise ValueError(
                f"expected ids 0 to N-1 in '{edges[0]}', the rows of the .npy files beside it (got "
                'text)'
            )
        arrays.update(columns)
    lists = {name: arrays.pop(name) for name in [*arrays] if isinstance(arrays[name], list)}
    data = files.graph_of_arrays(arrays, os.fspath(path))
    data.stores[0].update(lists)
    return data
