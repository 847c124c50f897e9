"""Graphs of tables: a table of edges, with one of nodes or without; or a folder with one per type.

A folder ``nodes/TYPE.parquet``, ``edges/SRC__REL__DST.parquet`` is a HeteroData.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.attributes import leave_to_count, set_owners
from pyg_sar.partition.graph import checked_edge_index
from pyg_sar.partition.memmap import Scratch, smallest_and_largest
from pyg_sar.partition.sources.edge_text import edge_list, edge_texts
from pyg_sar.partition.sources.ends import NodeIds, looked_up
from pyg_sar.partition.sources.node_tables import NodeTableOptions, open_nodes, read_nodes
from pyg_sar.partition.sources.parts import TABLES, table_files
from pyg_sar.partition.sources.tables import read_table
from pyg_sar.shard.format import NODE_NAMES


def graph_of_tables(path: Path, options: NodeTableOptions, scratch: Scratch) -> Data:
    """The graph of a table of edges, and of a table of nodes if `options` have one."""
    nodes: dict[str, Any] = {}
    ids = None
    if options.nodes is not None:
        table = open_nodes(Path(options.nodes))
        ids, nodes = read_nodes(table, options.of([table])[0], scratch)
    elif given := next(options.columns(), None):
        raise ValueError(f'expected --nodes TABLE with {given[0]} {given[1]} (got none)')
    edges = _edges(path, scratch, None if ids is None else (ids, ids))
    for name in edges:
        if name in nodes:
            raise ValueError(
                f"expected columns of different names in '{path}' and '{options.nodes}' (got "
                f"'{name}' in both): rename one of them"
            )
    return graph_of_edges(edges, path, nodes, ids)


def _edges(
    path: Path,
    scratch: Scratch,
    ids: tuple[NodeIds, NodeIds] | None,
    types: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """The columns of edges in a table or a list as text, with ends in tables of nodes if given."""
    texts = edge_texts(path)
    if not texts:
        return read_table(path, scratch, ids=ids, types=types)
    has_names = any('string' in each.kind for each in ids or ())
    found = edge_list(texts, scratch, has_names=has_names, types=types)
    return found if ids is None else looked_up(found, ids, path, scratch)


def graph_of_edges(
    edges: dict[str, Any],
    path: Path,
    nodes: dict[str, Any] | None = None,
    ids: NodeIds | None = None,
) -> Data:
    """The graph of ``edge_index`` and columns of edges, and of those of a table of nodes."""
    nodes, edges = nodes or {}, dict(edges)
    edge_index, names = edges.pop('edge_index'), edges.pop(NODE_NAMES, None)
    data = Data(edge_index=edge_index)
    data.edge_index = checked_edge_index(data, f"'{path}'")
    names = names if ids is None else ids.names
    if ids is not None:
        data.num_nodes = ids.count
    elif names is not None:
        data.num_nodes = len(names)
    else:
        bounds = [smallest_and_largest(each)[1] + 1 for each in edge_index if each.numel()]
        data.num_nodes = max(bounds, default=0)
    _fill(data, nodes | edges, names)
    leave_to_count(data.stores[0], edges)
    set_owners(data, nodes=nodes, edges=edges)
    return data


def _fill(store: Any, values: dict[str, Any], names: Any | None) -> None:
    for name in values:  # of which a graph would take one for ids of rows of the other
        if f'{name}_index' in values:
            raise ValueError(f"expected another name for the column '{name}_index' beside '{name}'")
    for name in sorted(values, key=lambda name: (name not in ('x', 'y'), name)):
        store[name] = values[name]
    if 'y_names' in values and 'num_classes' not in values:
        store['num_classes'] = len(values['y_names'])
    if names is not None:
        store[NODE_NAMES] = names


def is_typed_folder(path: Path) -> bool:
    """Whether a folder has tables by type in ``nodes/`` and ``edges/``."""
    return (path / 'nodes').is_dir() and (path / 'edges').is_dir()


def read_typed_folder(path: Path, options: NodeTableOptions, scratch: Scratch) -> HeteroData:
    """The graph of a folder with tables ``nodes/TYPE`` and ``edges/SRC__REL__DST``."""
    if options.nodes is not None:
        raise ValueError(
            f"expected no --nodes beside a folder with tables of nodes (got '{options.nodes}' and "
            f"'{path / 'nodes'}')"
        )
    nodes, edges = _tables(path / 'nodes'), _tables(path / 'edges')
    relations = {name: tuple(name.split('__')) for name in edges}
    for name, relation in relations.items():
        if len(relation) != 3 or not all(relation):
            raise ValueError(
                f"expected a name such as SRC__REL__DST of every table in '{path / 'edges'}' (got "
                f"'{name}')"
            )
        for type_ in relation[::2]:
            if type_ not in nodes:
                raise ValueError(
                    f"expected a table of the nodes of type '{type_}' in '{path / 'nodes'}', as "
                    f"'{edges[name]}' has its ends there (got {sorted(nodes)})"
                )
    data: Any = HeteroData()
    tables = {type_: open_nodes(file) for type_, file in nodes.items()}
    ids = {}
    for (type_, table), own in zip(tables.items(), options.of([*tables.values()]), strict=True):
        ids[type_], values = read_nodes(table, own, scratch)
        data[type_].num_nodes = ids[type_].count
        _fill(data[type_], values, ids[type_].names)
        leave_to_count(data[type_])
    for name, key in relations.items():
        values = _edges(edges[name], scratch, (ids[key[0]], ids[key[2]]), (key[0], key[2]))
        _fill(data[key], values, None)
    return data


def _tables(folder: Path) -> dict[str, Path]:
    """The tables in a folder, by name."""
    tables: dict[str, Path] = {}
    for entry in sorted(folder.glob('[!._]*')):
        name = entry.name.removesuffix(entry.suffix) if entry.suffix in TABLES else entry.name
        if not table_files(entry):
            raise ValueError(f"expected .parquet or .csv tables in '{folder}' (got '{entry.name}')")
        if name in tables:
            raise ValueError(f"expected one table '{name}' in '{folder}' (got {entry.name} too)")
        tables[name] = entry
    if not tables:
        raise ValueError(f"expected .parquet or .csv tables in '{folder}' (got none)")
    return tables
