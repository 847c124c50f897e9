"""Tables of nodes: ids, features, labels and masks, a row per node, beside tables of edges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.masks import MASKS
from pyg_sar.partition.memmap import Scratch, ranges
from pyg_sar.partition.sources.columns import Column, decoded, refused
from pyg_sar.partition.sources.ends import NodeIds
from pyg_sar.partition.sources.names import Numbering, empty_ids, id_type, is_text, storage
from pyg_sar.partition.sources.parts import (
    Table,
    arrow_errors,
    is_list,
    open_table,
    table_files,
    with_whole_ids,
)
from pyg_sar.partition.sources.tables import check_names, values_of
from pyg_sar.partition.sources.text_lines import is_number, split

_IDS = ('id', 'node_id', 'name', 'index')
_FEATURES = ('x', 'features')
_HINT = 'name it by --id, --y or --train, or '


@dataclass(frozen=True)
class NodeTableOptions:
    """What the columns of a table of nodes are; a column that none of this names is an attribute.

    `nodes` is the table beside one table of edges. A mask is a column of bools, or ``COLUMN=VALUE``
    for the rows with a value.
    """

    nodes: str | None = None
    id: str | None = None  # id, node_id, name or index by default
    y: str | None = None  # y by default
    x: tuple[str, ...] = ()  # by default a column of lists called x or features
    train: str | None = None
    val: str | None = None
    test: str | None = None

    def masks(self) -> dict[str, tuple[str, str | None]]:
        """The column and the value of every mask, by the mask's name."""
        given = zip(MASKS, (self.train, self.val, self.test), strict=True)
        split = {mask: text.partition('=') for mask, text in given if text is not None}
        return {m: (column, value if sign else None) for m, (column, sign, value) in split.items()}

    def columns(self) -> Iterator[tuple[str, str]]:
        """All options that name a column, and the columns."""
        yield from ((f'--{o}', c) for o, c in (('id', self.id), ('y', self.y)) if c is not None)
        yield from (('--x', column) for column in self.x)
        for mask, (column, _) in self.masks().items():
            yield f'--{mask.removesuffix("_mask")}', column

    def of(self, tables: Sequence[Table]) -> list[NodeTableOptions]:
        """The options of every table, of columns that it has; some table has each."""
        for option, column in self.columns():
            if not any(column in table.types for table in tables):
                where = ' or '.join(f"'{table.path}'" for table in tables)
                known = sorted({name for table in tables for name in table.types})
                raise ValueError(
                    f"expected a column '{column}' in {where}, as {option} says (got {known})"
                )
        return [self._of(table) for table in tables]

    def _of(self, table: Table) -> NodeTableOptions:
        def known(text: str | None) -> str | None:
            return text if text is not None and text.partition('=')[0] in table.types else None

        masks = (known(text) for text in (self.train, self.val, self.test))
        x = tuple(name for name in self.x if name in table.types)
        y = self.y if self.y in table.types else None
        id_ = self.id if self.id in table.types else None
        return NodeTableOptions(self.nodes, id_, y, x, *masks)


def open_nodes(path: Path) -> Table:
    """A table of nodes, .parquet or .csv with a header, in a file or a folder of parts."""
    if not (files := table_files(path)):
        what = 'no such file' if not path.exists() else 'no such table'
        raise ValueError(f"expected a .parquet or .csv file of nodes (got '{path}', {what})")
    for file in files:
        _check_header(file)
    return open_table(path)


def _check_header(file: Path) -> None:
    """Raises ValueError unless a .csv file begins with names of columns."""
    if file.suffix != '.csv':
        return
    with file.open(errors='replace') as text:
        line = text.readline().strip()
    if not line or line.startswith('#') or any(map(is_number, split(line, ','))):
        raise ValueError(
            f"expected a header in the first line of '{file}', such as id,age,label (got {line!r})"
        )
    if re.search(r',\s+"', line):
        raise ValueError(f"expected no blank in front of a quote in '{file}' (got {line!r})")


def read_nodes(
    table: Table, options: NodeTableOptions, scratch: Scratch
) -> tuple[NodeIds, dict[str, Any]]:
    """The ids of a table of nodes, and the other columns by the names of attributes.

    ``y`` is int64, -1 where a label is empty, or floats, NaN there; ``x`` float32 [N, k]; masks are
    bool [N]. Names of categories are lists, ``NAME_names``.
    """
    id_ = options.id or _id_column(table)
    table = with_whole_ids(table, id_)
    types, path = table.types, table.path
    if id_type(types[id_]) is None:
        raise ValueError(
            f"expected ids in '{id_}' of '{path}', whole numbers or text (got {types[id_]})"
        )
    y = options.y or ('y' if 'y' in types and id_ != 'y' and 'y' not in options.x else None)
    masks = {m: _Mask(*of, table, scratch) for m, of in options.masks().items()}
    lists = [name for name in _FEATURES if name in types and is_list(types[name])]
    x = options.x or tuple(lists[:1] if y not in lists[:1] else ())
    used = {id_, y, *x, *(mask.column for mask in masks.values())}
    others = {name: type_ for name, type_ in types.items() if name not in used}
    results = [*(['y'] if y else []), *(['x'] if x else []), *masks]
    for name in results:
        if name in others:
            raise ValueError(
                f"expected another name for the column '{name}' of '{path}', as an option makes "
                f"'{name}' of another column"
            )
    check_names(others, path)

    def column(name: str, **how: Any) -> Column:
        return Column(name, types[name], path, table.num_rows, scratch, hint=_HINT, **how)

    for name in x:
        _check_feature(name, types[name], path)
    labels = {'y': column(y, is_label=True)} if y else {}
    features = {name: column(name, dtype=torch.float32) for name in x}
    columns = {name: column(name) for name in others}
    readers = [*labels.values(), *features.values(), *columns.values()]
    ids, num_read = Numbering(), 0
    with arrow_errors(path):
        for batch in table.batches([name for name in types if name in {*used, *others}]):
            empty = empty_ids(batch.column(id_))
            if empty.size:
                row = num_read + int(empty[0])
                raise ValueError(
                    f"expected an id in every row of '{path}' (got none in '{id_}' of row {row}, "
                    'counted from 0)'
                )
            num_read += len(batch)
            ids.add(batch.column(id_))
            for reader in readers:
                reader.add(batch.column(reader.name))
            for mask in masks.values():
                mask.add(batch.column(mask.column))
    values = values_of({**columns, **labels}, path)
    if features:
        values['x'] = _stacked([each.values for each in features.values()], scratch)
    for name in {*MASKS} & {*values}:
        values[name] = _as_mask(name, values, path)
    return _node_ids(table, id_, ids), values | {m: mask.result() for m, mask in masks.items()}


def _id_column(table: Table) -> str:
    found = [name for name in table.types if name.strip().lower() in _IDS]
    if len(found) != 1:
        raise ValueError(
            f"expected one column of '{table.path}' called {', '.join(_IDS[:-1])} or {_IDS[-1]}, "
            f'or --id COLUMN (got {list(table.types)})'
        )
    return found[0]


def _node_ids(table: Table, column: str, ids: Numbering) -> NodeIds:
    if table.num_rows == 0:
        raise ValueError(f"expected a row for every node in '{table.path}' (got no row)")
    numbers, names = ids.result(is_sorted=False)
    repeated = np.flatnonzero(numbers.view(-1).numpy() != np.arange(table.num_rows))
    if repeated.size:
        row = int(repeated[0])
        raise ValueError(
            f"expected every id once in '{column}' of '{table.path}' (got "
            f'{names[int(numbers[row])].as_py()!r} again in row {row}, counted from 0)'
        )
    is_range = str(names.type) == 'int64' and np.array_equal(
        names.to_numpy(), np.arange(table.num_rows)
    )
    return NodeIds(table.path, column, table.num_rows, None if is_range else names)


def _check_feature(name: str, type_: Any, path: Path) -> None:
    types, type_ = import_module('pyarrow').types, decoded(type_)
    is_number = types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_)
    if not (is_number or types.is_decimal(type_) or is_list(type_)):
        raise refused(name, type_, path, 'leave it out of --x, or write it as numbers')


def _stacked(columns: list[Tensor], scratch: Scratch) -> Tensor:
    """Columns [N] or [N, k] side by side, float32."""
    if len(columns) == 1 and columns[0].dim() == 2:
        return columns[0]
    columns = [column.view(column.size(0), -1) for column in columns]
    x = scratch.empty((columns[0].size(0), sum(c.size(1) for c in columns)), torch.float32)
    for start, stop in ranges(x.size(0)):
        torch.cat([column[start:stop] for column in columns], 1, out=x[start:stop])
    return x


def _as_mask(name: str, values: dict[str, Any], path: Path) -> Tensor:
    """A column that is called as a mask, of bools or of 0 and 1, as bools."""
    column: Tensor = values[name]
    others = values.get(f'{name}_names') or column[(column != 0) & (column != 1)].tolist()
    if others:
        raise ValueError(
            f"expected bools, or 0 and 1, in '{name}' of '{path}' (got {others[0]!r}): "
            f'--{name.removesuffix("_mask")} {name}=VALUE takes the rows with a value'
        )
    return column.bool()


class _Mask:
    """A mask that is read in batches: the rows whose column has a value, or is true."""

    def __init__(self, column: str, value: str | None, table: Table, scratch: Scratch) -> None:
        self.column, self._text, self._path = column, value, table.path
        self._mask, self._end = scratch.empty((table.num_rows,), torch.bool), 0
        types, type_ = import_module('pyarrow').types, decoded(table.types[column])
        self._value: Any = value
        self._seen: set[Any] = set()
        is_number = types.is_integer(type_) or types.is_floating(type_)
        try:
            if types.is_boolean(type_):
                self._value = {None: True, 'true': True, 'false': False}[value and value.lower()]
            elif is_number and value is not None:
                self._value = float(value) if types.is_floating(type_) else int(value)
            else:
                type_ = type_.value_type if types.is_dictionary(type_) else type_
                if value is None or not is_text(type_):
                    raise ValueError
        except (KeyError, ValueError):
            raise ValueError(
                f'expected COLUMN=VALUE for a mask, of text or numbers, or a column of bools (got '
                f"'{column}{'' if value is None else f'={value}'}', and '{column}' of "
                f"'{table.path}' is {type_})"
            ) from None

    def add(self, array: Any) -> None:
        """The next rows."""
        pyarrow, compute = import_module('pyarrow'), import_module('pyarrow.compute')
        array = storage(array)
        if pyarrow.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if is_text(array.type):
            array = array.cast(pyarrow.large_string())
        if len(self._seen) < 10:
            self._seen |= {each for each in compute.unique(array).to_pylist() if each is not None}
        found = compute.equal(array, pyarrow.scalar(self._value, array.type)).fill_null(False)
        start, self._end = self._end, self._end + len(array)
        self._mask[start : self._end].numpy()[:] = found.to_numpy(zero_copy_only=False)

    def result(self) -> Tensor:
        """Bool [N]; some row must be in it."""
        if self._text is not None and not bool(self._mask.any()):
            some = sorted(map(str, self._seen))[:10]
            raise ValueError(
                f"expected a row with {self._text!r} in '{self.column}' of '{self._path}' (got "
                f'{some})'
            )
        return self._mask
