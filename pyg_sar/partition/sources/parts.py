"""Tables in files and in folders of parts, read by pyarrow a batch of rows at a time."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pyg_sar.partition.sources.names import is_text
from pyg_sar.partition.sources.pieces import is_read
from pyg_sar.shard.files import is_of_system
from pyg_sar.utils.installed import reader

TABLES = ('.parquet', '.csv')
BATCH_ROWS = 1 << 17


def table_files(path: Path) -> list[Path]:
    """The files of a table: itself, or its parts in a folder, by name; none of anything else.

    Numbers in names count as such: dask's ``part.10.parquet`` comes after ``part.9.parquet``.
    Folders in it that are called ``column=value``, as Spark writes them, have parts as well.
    """
    if path.is_file():
        return [path] if path.suffix in TABLES else []
    if (path / '_delta_log').is_dir():  # which tells the parts that are no longer of the table
        raise ValueError(
            f"expected a folder of parts (got '{path}', a table of Delta): "
            "deltalake.DeltaTable(path).to_pandas().to_parquet('edges.parquet') saves its rows"
        )
    found: list[Path] = []
    for entry in sorted(path.glob('[!._]*'), key=_by_numbers):
        if entry.suffix in TABLES and entry.is_file():
            found.append(entry)
        elif '=' in entry.name and entry.is_dir():
            found += table_files(entry)
    return found


def _by_numbers(entry: Path) -> list[int | str]:
    words = re.split(r'([0-9]+)', entry.name)
    return [int(word) if at % 2 else word for at, word in enumerate(words)]


@dataclass(frozen=True)
class Table:
    """A table whose parts have the same columns, of types that one type can stand for."""

    path: Path
    fragments: list[Any]
    types: dict[str, Any]  # of pyarrow, by the name of the column
    partitions: dict[str, Any]  # those of them that are in names of folders
    num_rows: int

    def batches(self, names: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Batches of some columns, in order; types are those of each part."""
        pyarrow = import_module('pyarrow')
        widths = (getattr(self.types[name], 'list_size', 1) for name in names)
        rows = max(1, batch_rows // max(sum(widths) // 8, 1))
        # One batch ahead and no threads: the memory is that of a few batches.
        few = {'batch_readahead': 1, 'fragment_readahead': 1, 'use_threads': False}
        with arrow_errors(self.path):
            end = 0
            for part in self.fragments:
                schema = part.physical_schema
                for name, type_ in self.partitions.items():
                    schema = schema.append(pyarrow.field(name, type_))
                own = dict(zip(_names(part), part.physical_schema.names, strict=True))
                columns = [own.get(name, name) for name in names]
                for batch in part.to_batches(schema, columns=columns, batch_size=rows, **few):
                    arrays = batch.columns
                    if _is_csv(part):
                        arrays = [
                            _trimmed(*of, self.path) for of in zip(names, arrays, strict=True)
                        ]
                    yield pyarrow.RecordBatch.from_arrays(arrays, names=[*names])
                    end += batch.num_rows
                    is_read.value(end / max(self.num_rows, 1))


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Errors of pyarrow as ValueErrors of one line that name the table."""
    pyarrow = import_module('pyarrow')
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        if is_of_system(error):
            raise
        first_line = str(error).splitlines()[0]
        raise ValueError(f"expected a table of numbers in '{path}' (got: {first_line})") from error


def open_table(path: Path, texts: Sequence[str] = ()) -> Table:
    """A table in a file or in a folder of parts; their columns may be in another order.

    Columns of a .csv file get types by all rows; `texts` are text.
    """
    reader('pyarrow', path)
    dataset = reader('pyarrow.dataset', path)
    files = table_files(path)
    kinds = sorted({file.suffix for file in files})
    if len(kinds) != 1:
        raise ValueError(f"expected parts of one kind in '{path}' (got {' and '.join(kinds)})")
    with arrow_errors(path):
        table = dataset.dataset(
            [os.fspath(file) for file in files],
            format=_csv_format(files, texts) if kinds == ['.csv'] else 'parquet',
            partitioning=dataset.HivePartitioning.discover(),
            partition_base_dir=os.fspath(path if path.is_dir() else path.parent),
        )
        parts = list(table.get_fragments())
        own = _names(parts[0])
        types, partitions = _types(parts, path), {}
        for field in table.schema:
            if field.name not in parts[0].physical_schema.names:
                partitions[field.name] = _of_folders(field.type)
        names = [*own, *partitions]
        if rows := [name for name in names if re.fullmatch(r'__index_level_\d+__', name)]:
            names = [name for name in names if name not in rows]
            warnings.warn(
                f"left out of '{path}', as they are pandas's numbers of rows: {', '.join(rows)}",
                stacklevel=2,
            )
        if not all(name.strip() for name in names) or len(set(names)) < len(names):
            raise ValueError(
                f"expected a name for every column of '{path}', each another (got {names}): pandas "
                'leaves its index out by to_csv(index=False)'
            )
        kept = {name: type_ for name, type_ in {**types, **partitions}.items() if name in names}
        return Table(path, parts, kept, partitions, table.count_rows())


def with_whole_ids(table: Table, name: str) -> Table:
    """The table, where ids are text if one in a .csv file begins with a zero, as 01."""
    compute = import_module('pyarrow.compute')
    is_integer = import_module('pyarrow').types.is_integer(table.types[name])
    if not is_integer or name in table.partitions or not _is_csv(table.fragments[0]):
        return table
    own = (zip(_names(p), p.physical_schema.names, strict=True) for p in table.fragments)
    texts = {raw for pairs in own for plain, raw in pairs if plain == name}
    as_text = open_table(table.path, [*texts])
    ids = (batch.column(0) for batch in as_text.batches([name]))
    found = (compute.any(compute.match_substring_regex(each, '^-?0[0-9]')).as_py() for each in ids)
    return as_text if any(found) else table


def _csv_format(files: list[Path], texts: Sequence[str]) -> Any:
    csv, string = import_module('pyarrow.csv'), import_module('pyarrow').string()
    size = min(max(file.stat().st_size for file in files) + 1, (1 << 31) - 1)
    return import_module('pyarrow.dataset').CsvFileFormat(
        read_options=csv.ReadOptions(block_size=size),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(texts, string)),
    )


def _is_csv(part: Any) -> bool:
    return bool(part.format.default_extname == 'csv')


def _names(part: Any) -> list[str]:
    """The names of columns, those of a .csv file without blanks around them."""
    names = part.physical_schema.names
    return [name.strip() for name in names] if _is_csv(part) else names


def _trimmed(name: str, array: Any, path: Path) -> Any:
    """A column of a .csv file, of text without blanks around it."""
    compute = import_module('pyarrow.compute')
    if is_text(array.type):
        if compute.any(compute.match_substring_regex(array, r'^\s+"')).as_py():
            raise ValueError(f"expected no blank in front of a quote in '{name}' of '{path}'")
        return compute.utf8_trim_whitespace(array)
    if import_module('pyarrow').types.is_floating(array.type) and are_wide_integers(
        array.to_numpy(zero_copy_only=False)
    ):
        raise ValueError(
            f"expected numbers of at most 64 bits in '{name}' of '{path}' (got larger integers): "
            'leave the column out, or write a letter in front of ids'
        )
    return array


def are_wide_integers(array: Any) -> bool:
    """Whether floats are integers, of which some have more than 64 bits."""
    finite = array[np.isfinite(array)]
    return bool((abs(finite) >= 2**63).any() and (finite % 1 == 0).all())


def _of_folders(type_: Any) -> Any:
    """Text in names of folders is a category."""
    pyarrow = import_module('pyarrow')
    return pyarrow.dictionary(pyarrow.int32(), type_) if is_text(type_) else type_


def _types(parts: list[Any], path: Path) -> dict[str, Any]:
    """The types of columns that all parts have."""
    types = dict(zip(_names(parts[0]), parts[0].physical_schema.types, strict=True))
    for part in parts[1:]:
        own = dict(zip(_names(part), part.physical_schema.types, strict=True))
        if sorted(_names(part)) != sorted(_names(parts[0])):
            missing = sorted({*own} ^ {*types})
            raise ValueError(
                f"expected the same columns in all of '{path}' (got '{part.path}', and {missing} "
                'is not in all)'
            )
        for name in types:
            type_ = own[name]
            both = wider(types[name], type_)
            if both is None:
                raise ValueError(
                    f"expected the same columns in all of '{path}' (got '{part.path}', whose "
                    f"'{name}' is {type_} instead of {types[name]}: write both as one type)"
                )
            types[name] = both
    return types


def wider(one: Any, other: Any) -> Any | None:
    """The type that holds what two types hold, all of it; None where there is no such type."""
    pyarrow = import_module('pyarrow')
    types = pyarrow.types
    if one.equals(other):
        return one
    for is_kind in (types.is_integer, types.is_floating):
        if is_kind(one) and is_kind(other):
            dtype = np.result_type(one.to_pandas_dtype(), other.to_pandas_dtype())
            type_ = pyarrow.from_numpy_dtype(dtype)  # float64 of int64 and uint64
            return type_ if is_kind(type_) else None
    if is_text(one) and is_text(other):
        return pyarrow.large_string()
    if types.is_decimal(one) and types.is_decimal(other):
        return one
    if types.is_dictionary(one) and types.is_dictionary(other):
        values = wider(one.value_type, other.value_type)
        return values and pyarrow.dictionary(pyarrow.int32(), values)
    if is_list(one) and is_list(other):
        values = wider(one.value_type, other.value_type)
        sizes = {getattr(type_, 'list_size', None) for type_ in (one, other)}
        if values is None or len(sizes) > 1 or None in sizes:
            return values and pyarrow.large_list(values)
        return pyarrow.list_(values, sizes.pop())
    return None


def is_list(type_: Any) -> bool:
    """Whether a type is of lists, all of one length or not."""
    types = import_module('pyarrow').types
    kinds = types.is_list, types.is_large_list, types.is_fixed_size_list
    return any(is_kind(type_) for is_kind in kinds)
