"""Lists of edges as text, one edge a line, as SNAP and Network Repository publish them.

pyarrow reads the numbers of a piece of lines at a time, so memory does not grow with the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pyg_sar.partition.memmap import Scratch, smallest_and_largest
from pyg_sar.partition.sources import text_lines
from pyg_sar.partition.sources.columns import unit_of
from pyg_sar.partition.sources.end_columns import ends_of
from pyg_sar.partition.sources.names import Numbering
from pyg_sar.partition.sources.parts import are_wide_integers, table_files
from pyg_sar.partition.sources.pieces import is_read
from pyg_sar.partition.sources.spool import Spool
from pyg_sar.partition.sources.text_form import Form, form_of, names_in_comment
from pyg_sar.partition.sources.text_lines import (
    Piece,
    is_integer,
    is_name,
    is_number,
    text_suffix,
)
from pyg_sar.shard.format import NODE_NAMES
from pyg_sar.utils import installed

SUFFIXES = ('.txt', '.tsv', '.csv', '.edges', '.edgelist', '.el')


@dataclass
class EdgeText:
    """What a list of edges holds."""

    arrays: dict[str, Any]  # edge_index [2, E] and columns [E]; of names also node_names
    comments: list[str] = field(default_factory=list)  # in front of the first edge
    num_comments: int = 0
    header: str | None = None


def read_edge_text(
    files: Sequence[Path],
    scratch: Scratch,
    *,
    has_names: bool = False,
    is_konect: bool = False,
    types: tuple[str, str] | None = None,
    takes_floats: bool = False,
) -> EdgeText:
    """Reads files with an edge a line; those of one list have the same columns.

    With `has_names` all ids are text. Lines of KONECT may leave out the weight, which is 1. `types`
    are those of nodes at both ends, if there are several. With `takes_floats` 1.0 is the id 1.
    """
    installed.reader('pyarrow', files[0])
    found = EdgeText({})
    with ExitStack() as stack:
        reader = None
        for at, path in enumerate(files):
            is_first = True
            for piece in text_lines.pieces(path):
                first = next(piece.lines(), None)
                if reader is None and first is not None:
                    form = form_of(piece, has_names=has_names, is_konect=is_konect, types=types)
                    reader = stack.enter_context(closing(_Reader(form, scratch, takes_floats)))
                    found.header, found.comments = form.header, piece.comments()
                if reader is not None:
                    found.num_comments += reader.add(piece, path_begins=is_first)
                is_first = is_first and first is None
                is_read.value((at + piece.done) / len(files))
        if reader is None or not reader.num_edges:
            names = ' and '.join(f"'{path}'" for path in files[:2])
            raise ValueError(f'expected lines of edges in {names} (got none)')
        found.arrays = reader.arrays()
    return found


def edge_texts(path: Path | None) -> list[Path]:
    """The files of a list of edges as text: itself, or the .csv parts in a folder."""
    if path is None:
        return []
    if path.is_file():
        return [path] if text_suffix(path) in SUFFIXES else []
    files = table_files(path)
    return files if all(file.suffix == '.csv' for file in files) else []


def edge_list(
    texts: list[Path],
    scratch: Scratch,
    *,
    relabel: bool = False,
    has_names: bool = False,
    types: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """The arrays of a list of edges by name; a note tells how it was read."""
    try:
        found = read_edge_text(
            texts, scratch, has_names=has_names, types=types, takes_floats=relabel
        )
    except ValueError:
        if not relabel:
            raise
        found = read_edge_text(texts, scratch, has_names=True)
    path = texts[0] if len(texts) == 1 else texts[0].parent
    arrays, told = found.arrays, []
    if found.num_comments:
        told.append(f'{found.num_comments:,} comment lines')
    columns = ', '.join(column for column in arrays if column not in ('edge_index', NODE_NAMES))
    if found.header is None and columns:
        told.append(f'no header: columns beside the ids are {columns}')
    if NODE_NAMES in arrays and not has_names:
        told.append(f'{len(arrays[NODE_NAMES]):,} names of nodes')
    if told:
        warnings.warn(f"'{path}' has {'; '.join(told)}", stacklevel=3)
    if found.header is None and NODE_NAMES not in arrays and _begins_with_sizes(arrays):
        warnings.warn(
            f"the first line of '{path}' may hold numbers of nodes and edges: it was read as an "
            'edge; take the line out if so',
            stacklevel=3,
        )
    return found.arrays


def _begins_with_sizes(arrays: dict[str, Any]) -> bool:
    """Whether the first line could be the sizes of what follows: nodes, [nodes,] edges."""
    edges, others = arrays['edge_index'], [name for name in arrays if name != 'edge_index']
    first = [*edges[:, 0].tolist(), *(arrays[name][0].item() for name in others[:1])]
    count = edges.size(1) - 1
    if count < 3 or len(others) > 1 or first[-1] != count:
        return False
    return min(first[:-1]) >= max(smallest_and_largest(ids[1:])[1] for ids in edges)


class _Reader:
    """Collects the columns of pieces."""

    def __init__(self, form: Form, scratch: Scratch, takes_floats: bool) -> None:
        self.form, self.num_edges, self._scratch = form, 0, scratch
        self._takes_floats = takes_floats
        self._spools = {name: Spool(scratch) for name in form.names}
        self._names = Numbering() if form.is_text else None
        self._units, self._told = dict[str, str](), set[str]()
        self._pyarrow = import_module('pyarrow')
        is_text = self._names is not None
        self._id_type = self._pyarrow.string() if is_text else self._pyarrow.int32()

    def add(self, piece: Piece, *, path_begins: bool) -> int:
        """Appends the rows of a piece; gives the number of its comments."""
        skip_header = path_begins and self.form.header is not None
        if skip_header and (first := next(piece.lines(), None)) != self.form.header:
            raise ValueError(
                f"expected the header of the other files in '{piece.path}', {self.form.header!r} "
                f'(got {first!r})'
            )
        form = self.form
        told = path_begins and names_in_comment(piece, form.delimiter, len(form.names))
        if told and ends_of(told) != form.ends:
            raise ValueError(
                f"expected the columns of the other files in '{piece.path}', {form.names} "
                f'(got {told})'
            )
        compute = import_module('pyarrow.compute')
        content, num_comments = text_lines.without_comments(piece.content)
        if num_comments and self._names is not None:
            has_header = bool(told) or form.header is not None
            count = len(form.names)
            text_lines.check_comments(piece, form.delimiter, count, has_header=has_header)
        if skip_header:
            content = content.lstrip().partition(b'\n')[2]
        if content.isspace() or not content:
            return num_comments
        try:
            columns = self._columns(content)
            values = {}
            for at, name in enumerate(self.form.names):
                if self._names is None or at not in self.form.ends:
                    values[name] = _numbers(columns[at])
                    self._tell_unit(name, columns[at].type, piece)
            names = [] if self._names is None else [columns[at] for at in self.form.ends]
            names = [compute.utf8_trim_whitespace(of) for of in names]
            if any(compute.min(compute.binary_length(of)).as_py() == 0 for of in names):
                raise _NoNumbersError('an empty name')
        except (self._pyarrow.ArrowInvalid, _NoNumbersError) as error:
            self.explain(piece, str(error), skip_header=skip_header)
        if self._names is None and not form.fill:
            text_lines.check_zeros(piece, form.names, form.ends, form.delimiter, int(skip_header))
        for name, column in values.items():
            self._spools[name].add(column)
        if self._names is not None:
            self._names.add(*names)
        self.num_edges += len(columns[0])
        return num_comments

    def _tell_unit(self, name: str, type_: Any, piece: Piece) -> None:
        """Warns once of a column of times, which has one unit in all pieces."""
        unit = unit_of(type_) if self._pyarrow.types.is_temporal(type_) else ''
        if self._units.setdefault(name, unit) != unit:
            raise _NoNumbersError(f"'{name}' in {unit} after {self._units[name]}")
        if unit and name not in self._told:
            self._told.add(name)
            text = f"'{name}' of '{piece.path}' holds {unit}"
            warnings.warn(text, stacklevel=8)

    def _columns(self, content: bytes) -> list[Any]:
        form = self.form
        content, is_quoted = text_lines.without_odd_quotes(content, form.delimiter)
        if form.delimiter == ' ' and not is_quoted:
            if b' ' not in content:  # by single tabs, mostly
                with suppress(self._pyarrow.ArrowInvalid):
                    return self._parsed(content, '\t', has_quotes=False)
            content = text_lines.by_single_spaces(content)
        if form.fill and len(form.names) > 2:
            lines = content.splitlines()
            content = b'\n'.join(x + form.fill if x.count(b' ') == 1 else x for x in lines)
        has_quotes = is_quoted or form.delimiter != ' '
        return self._parsed(content, form.delimiter, has_quotes=has_quotes)

    def _parsed(self, content: bytes, delimiter: str, *, has_quotes: bool) -> list[Any]:
        pyarrow = self._pyarrow
        try:
            table = self._table(content, delimiter, has_quotes, self._id_type)
        except pyarrow.ArrowInvalid:
            if self._id_type == pyarrow.int32():
                self._id_type = pyarrow.int64()
                return self._parsed(content, delimiter, has_quotes=has_quotes)
            if not self._takes_floats or self.form.is_text:
                raise
            table = self._table(content, delimiter, has_quotes, pyarrow.float64())
            for at in self.form.ends:
                ids = table.column(at)
                if not (abs(ids.to_numpy()) < 2**53).all():
                    raise _NoNumbersError('ids that float64 does not hold') from None
                table = table.set_column(at, self.form.names[at], ids.cast(pyarrow.int64()))
        return [column.combine_chunks() for column in table.columns]

    def _table(self, content: bytes, delimiter: str, has_quotes: bool, id_type: Any) -> Any:
        csv, form = import_module('pyarrow.csv'), self.form
        return csv.read_csv(
            self._pyarrow.BufferReader(content),
            csv.ReadOptions(
                use_threads=False, block_size=len(content) + 1, column_names=form.names
            ),
            csv.ParseOptions(delimiter=delimiter, quote_char='"' if has_quotes else False),
            csv.ConvertOptions(
                column_types={form.names[at]: id_type for at in form.ends},
                null_values=[],
                check_utf8=form.is_text,
            ),
        )

    def explain(self, piece: Piece, reason: str, *, skip_header: bool) -> NoReturn:
        """Raises ValueError with the first line of a piece that is not as it must be."""
        form, of_end = self.form, is_name if self.form.is_text else is_integer
        checks: dict[str, Callable[[str], bool]] = {
            name: of_end if at in form.ends else is_number for at, name in enumerate(form.names)
        }
        text_lines.explain(piece, form.delimiter, checks, int(skip_header))
        raise ValueError(
            f"expected an edge in every line of '{piece.path}' from line {piece.first_line()} on "
            f'(got: {reason.splitlines()[0]})'
        )

    def close(self) -> None:
        """Gives files back."""
        for spool in self._spools.values():
            spool.close()

    def arrays(self) -> dict[str, Any]:
        """The columns by name, and ``edge_index``; ``node_names`` of names."""
        form = self.form
        found: dict[str, Any] = {}
        if self._names is None:
            src, dst = (self._spools[form.names[at]] for at in form.ends)
            found['edge_index'] = src.joined(dst)
        else:
            found['edge_index'], found[NODE_NAMES] = self._names.edges(
                self._scratch, is_sorted=False
            )
        others = [name for at, name in enumerate(form.names) if at not in form.ends]
        return {**found, **{name: self._spools[name].tensor() for name in others}}


class _NoNumbersError(Exception):
    """A column of a piece is not of numbers."""


def _numbers(column: Any) -> Any:
    """A column as an array; ValueError where numbers would be others than those of the file."""
    pyarrow = import_module('pyarrow')
    if pyarrow.types.is_temporal(column.type):
        narrow = pyarrow.int32() if column.type.bit_width == 32 else pyarrow.int64()
        column = column.cast(narrow).cast(pyarrow.int64())
    array = column.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in 'biuf' or column.null_count:
        raise _NoNumbersError(f'a column of {column.type}')
    if array.dtype.kind == 'f' and are_wide_integers(array):
        raise _NoNumbersError('integers of more than 64 bits')
    return array
