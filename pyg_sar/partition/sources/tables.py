"""Edge lists in Parquet files, whose ends are numbers or names of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyg_sar.partition.masks import INDICES
from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources.columns import Column
from pyg_sar.partition.sources.end_columns import columns_of_ends
from pyg_sar.partition.sources.ends import Ends, NodeIds
from pyg_sar.partition.sources.parts import (
    BATCH_ROWS,
    arrow_errors,
    is_list,
    open_table,
)

_TAKEN = frozenset(
    {'edge_index', 'adj_t', 'num_nodes', 'n_id', 'e_id', 'face', 'node_names', *INDICES}
)


def read_table(
    path: Path,
    scratch: Scratch = MEMORY,
    *,
    batch_rows: int = BATCH_ROWS,
    ids: tuple[NodeIds, NodeIds] | None = None,
    types: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Reads a Parquet table with a row per edge into scratch space.

    Gives ``edge_index`` integer [2, E], and every other column, [E] or [E, k]. `path` may be a
    folder with the parts of a table. Categories become numbers, and a list ``NAME_names`` has their
    names.

    Ends that are text or UUIDs become numbers 0 to N-1 in the order in which they first come:
    ``node_names``, a pyarrow Array [N], has them.
    With `ids` of the tables of sources and of destinations, and of `types` of nodes, ends are ids
    there.
    """
    table = open_table(path)
    names = list(table.types)
    if len(names) < 2:
        raise ValueError(
            f"expected two columns or more, of different names, in '{path}' (got {names})"
        )
    ends = [names[at] for at in columns_of_ends(names, f"'{path}'", types)]
    edges = Ends(table, ends, scratch, ids=ids)
    others = {name: type_ for name, type_ in table.types.items() if name not in ends}
    check_names(others, path)
    columns = {n: Column(n, t, path, table.num_rows, scratch) for n, t in others.items()}
    with arrow_errors(path):
        for batch in table.batches(names, batch_rows):
            edges.add([batch.column(name) for name in ends])
            for name, column in columns.items():
                column.add(batch.column(name))
    return edges.result() | values_of(columns, path)


def values_of(columns: dict[str, Column], path: Path) -> dict[str, Any]:
    """The numbers of columns that were read, and lists with the names of categories."""
    arrays: dict[str, Any] = {name: column.values for name, column in columns.items()}
    for name, column in columns.items():
        if column.names is not None:
            if f'{name}_names' in columns:
                raise ValueError(
                    f"expected another name for the column '{name}_names' of '{path}': the names "
                    f"of '{name}' are called so"
                )
            arrays[f'{name}_names'] = column.names
    return arrays


def check_names(types: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError of a column whose name means something else in a graph."""
    for name, type_ in types.items():
        is_of_ids = name.endswith('_index') and name.removesuffix('_index') in types
        if name.startswith('_'):
            raise ValueError(
                f"expected names of columns that begin with a letter in '{path}' (got '{name}'): "
                'rename the column, or leave it out'
            )
        if name in _TAKEN or is_of_ids or ('index' in name and is_list(type_)):
            raise ValueError(
                f"expected another name for the column '{name}' of '{path}', which is that of "
                'something else in a graph'
            )
