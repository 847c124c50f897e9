"""The ends of edges in a table: ids as they are, numbered, or looked up in a table of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.memmap import Scratch, ranges
from pyg_sar.partition.sources.columns import decoded, refused
from pyg_sar.partition.sources.names import (
    Numbering,
    empty_ids,
    id_type,
    number_edges,
    places,
    plain_ids,
)
from pyg_sar.partition.sources.parts import Table
from pyg_sar.shard.format import NODE_NAMES


@dataclass(frozen=True)
class NodeIds:
    """The ids of a table of nodes; `names` is None of 0 to N-1 in order."""

    path: Path
    column: str
    count: int
    names: Any | None

    def array(self) -> Any:
        """All ids, a pyarrow Array [N]."""
        if self.names is not None:
            return self.names
        return import_module('pyarrow').array(np.arange(self.count))

    @property
    def kind(self) -> str:
        """The type of the ids."""
        return 'int64' if self.names is None else str(self.names.type)


_ONE_KIND = (
    'sources and destinations are both numbers, or both names; names become numbers by ids, names '
    "= pandas.factorize(table[['src', 'dst']].to_numpy().ravel()), src, dst = ids[::2], ids[1::2]"
)


class Ends:
    """The ends of the edges of a table, read in batches into scratch space.

    Without `ids` of tables of nodes, integers stay as they are; other ids are numbered in the order
    in which they first come.
    """

    def __init__(
        self,
        table: Table,
        names: list[str],
        scratch: Scratch,
        *,
        ids: tuple[NodeIds, NodeIds] | None = None,
    ) -> None:
        self._path, self._names, self._ids, self._end = table.path, names, ids, 0
        kinds = [self._kind(name, table.types[name]) for name in names]
        if ids is None and kinds[0] != kinds[1]:
            name = names[kinds[0] == 'int64']
            raise refused(name, table.types[name], table.path, _ONE_KIND)
        for name, kind, each in zip(names, kinds, ids or (), strict=ids is not None):
            if kind != each.kind:
                raise ValueError(
                    f"expected ids of one type in '{name}' of '{table.path}' and '{each.column}' "
                    f"of '{each.path}' (got {table.types[name]} and "
                    f'{each.kind.removeprefix("large_")}): write both as '
                    'numbers, or both as text'
                )
        self._numberings: list[Numbering] = []
        dtype = torch.int32
        is_as_is = all(each.names is None for each in ids or ())
        if is_as_is and kinds == ['int64', 'int64']:
            types = (np.dtype(decoded(table.types[name]).to_pandas_dtype()) for name in names)
            # float64 of uint64, which int64 then has to do for.
            common = min(np.result_type(np.int8, *types), np.dtype(np.int64))
            dtype = torch.from_numpy(np.empty(0, common)).dtype
        else:
            self._numberings = [Numbering() for _ in ids or (None,)]
        self._scratch = scratch
        self._edge_index = scratch.empty((2, table.num_rows), dtype)

    def _kind(self, name: str, type_: Any) -> str:
        kind, types = id_type(type_), import_module('pyarrow').types
        if kind is None and (types.is_floating(type_) or types.is_boolean(type_)):
            dtype = np.dtype(type_.to_pandas_dtype())
            raise ValueError(f"expected integers in {self._names} of '{self._path}' (got {dtype})")
        if kind is None:
            raise refused(name, type_, self._path)
        return str(kind)

    def add(self, columns: list[Any]) -> None:
        """The sources and the destinations of the next edges."""
        for name, column in zip(self._names, columns, strict=True):
            empty = empty_ids(column)
            if empty.size:
                row = self._end + int(empty[0])
                raise ValueError(
                    f"expected no empty cell in '{name}' of '{self._path}' (got "
                    f'{len(empty)}, the first in row {row}, counted from 0)'
                )
        start, self._end = self._end, self._end + len(columns[0])
        if not self._numberings:
            for name, target, column in zip(self._names, self._edge_index, columns, strict=True):
                is_large = str(column.type) == 'uint64'
                numbers = (column if is_large else plain_ids(column)).to_numpy()
                wide = np.flatnonzero(numbers >= 1 << 63) if is_large else np.empty(0, np.int64)
                if wide.size:
                    raise ValueError(
                        f"expected ids below 2^63 in '{name}' of '{self._path}' (got "
                        f'{numbers[wide[0]]} in row {start + int(wide[0])}, counted from 0): write '
                        'them as text'
                    )
                target[start : self._end].numpy()[:] = numbers
        elif len(self._numberings) == 1:
            self._numberings[0].add(*columns)
        else:
            for numbering, column in zip(self._numberings, columns, strict=True):
                numbering.add(column)

    def result(self) -> dict[str, Any]:
        """``edge_index``, and ``node_names`` where ids were numbered."""
        arrays = {'edge_index': self._edge_index}
        if not self._numberings:
            for at, ids in enumerate(self._ids or ()):
                self._check_range(at, ids)
        elif self._ids is not None:
            for at, ids in enumerate(self._ids):
                if self._end:
                    numbers, different = self._numberings[at].result(is_sorted=False)
                    self._look_up(at, ids, numbers.view(-1), different)
        elif self._end:
            numbering = self._numberings[0]
            arrays['edge_index'], arrays[NODE_NAMES] = numbering.edges(
                self._scratch, is_sorted=False
            )
        return arrays

    def _look_up(self, at: int, ids: NodeIds, numbers: Tensor, different: Any) -> None:
        """Writes in which row of the table of nodes every end is."""
        found = places(ids.array(), different)
        missing = np.flatnonzero(found < 0)
        if missing.size:  # numbered as they first come: the first is that of the first row
            row = int(np.flatnonzero(numbers.numpy() == missing[0])[0])
            raise self._unknown(at, row, different[int(missing[0])].as_py(), ids)
        rows = torch.from_numpy(found.astype(np.int32))
        for start, stop in ranges(self._end):
            self._edge_index[at, start:stop] = rows[numbers[start:stop].long()]

    def _check_range(self, at: int, ids: NodeIds) -> None:
        for start, stop in ranges(self._end):
            numbers = self._edge_index[at, start:stop].numpy()
            wrong = np.flatnonzero((numbers < 0) | (numbers >= ids.count))
            if wrong.size:
                raise self._unknown(at, start + int(wrong[0]), int(numbers[wrong[0]]), ids)

    def _unknown(self, at: int, row: int, id_: Any, ids: NodeIds) -> ValueError:
        return ValueError(
            f"expected ids of '{ids.column}' of '{ids.path}' in '{self._names[at]}' of "
            f"'{self._path}' (got {id_!r} in row {row}, counted from 0): add the node, or leave "
            'the edge out'
        )


def looked_up(
    edges: dict[str, Any], ids: tuple[NodeIds, NodeIds], path: Path, scratch: Scratch
) -> dict[str, Any]:
    """Columns of edges, whose ends are ids or names, with rows of tables of nodes as ends."""
    edge_index, names = edges['edge_index'], edges.get(NODE_NAMES)
    if names is None and any(each.names is not None for each in ids):
        edge_index, names = number_edges(edge_index, scratch, is_sorted=False)
    rows = scratch.empty(edge_index.shape, torch.int32)
    for at, each in enumerate(ids):
        found = None if names is None else places(each.array().cast(names.type), names)
        for start, stop in ranges(edge_index.size(1)):
            numbers = edge_index[at, start:stop].long()
            if found is None:
                part = numbers.where((numbers >= 0) & (numbers < each.count), -1).numpy()
            else:
                part = found[numbers.numpy()]
            missing = np.flatnonzero(part < 0)
            if missing.size:
                number = int(numbers[missing[0]])
                raise ValueError(
                    f"expected ids of '{each.column}' of '{each.path}' in '{path}' (got "
                    f'{number if names is None else names[number].as_py()!r} as '
                    f'{("source", "destination")[at]} of edge {start + int(missing[0])}, counted '
                    'from 0): add the node, or leave the edge out'
                )
            rows[at, start:stop] = torch.from_numpy(part.astype(np.int32))
    return {**{k: v for k, v in edges.items() if k != NODE_NAMES}, 'edge_index': rows}
