"""How the lines of a list of edges are to be read: signs between columns, names, header, ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain, islice

from pyg_sar.partition.sources import text_lines
from pyg_sar.partition.sources.end_columns import columns_of_ends, ends_of, has_an_end
from pyg_sar.partition.sources.odd_forms import check_form
from pyg_sar.partition.sources.tables import check_names
from pyg_sar.partition.sources.text_lines import Piece, is_integer, is_number, is_plain

_COLUMNS = ('src', 'dst', 'edge_weight', 'time')
"""What the columns of a file without a header are."""

_MOST = 6
"""Columns of a file without a header, at most; more are a matrix."""

SECONDS = (10**8, 10**11)
"""Integers between these are no weights but times, in seconds since 1970."""

_LOOK_AHEAD = 1000
"""Lines after the first by which it is known what that is."""


@dataclass
class Form:
    """How the lines of a file are to be read."""

    delimiter: str
    names: list[str]
    header: str | None
    ends: tuple[int, int]
    is_text: bool  # whether nodes have names
    fill: bytes = b''  # what a line of two fields lacks


def form_of(
    piece: Piece, *, has_names: bool, is_konect: bool, types: tuple[str, str] | None
) -> Form:
    """How the lines of a file are to be read, from its first lines."""
    first, *_ = texts = [*islice(piece.lines(), 1 + _LOOK_AHEAD)]
    check_form(piece, texts, is_konect=is_konect)
    delimiter = text_lines.delimiter_of(texts)
    fields, *rest = (text_lines.split(text, delimiter) for text in texts)
    where = f"the first line of '{piece.path}'"
    if len(fields) < 2:
        raise ValueError(
            f'expected an edge, two ids by a comma, a tab or spaces, in {where} (got {first!r})'
        )
    if is_konect:
        count = max(map(len, [fields, *rest]))
        return Form(delimiter, [*_COLUMNS[:count]], None, (0, 1), False, fill=b' 1')
    told = names_in_comment(piece, delimiter, len(fields))
    if not _is_header(fields, rest, first, where, is_told=bool(told)):
        rows = [fields, *rest]
        names = told or _names(rows, where)
        ends = columns_of_ends(names, where) if told else (0, 1)
        _check_others(names, ends, piece)
        return Form(delimiter, names, None, ends, has_names or _has_names(rows, ends))
    if len(fields) == 2 and fields[0] == fields[1] != '':  # two ids of one kind
        fields = [*_COLUMNS[:2]]
    if not all(fields) or len({*fields}) < len(fields):
        raise ValueError(
            f'expected a name for every column, each another, in {where} (got {fields}): pandas '
            'leaves its index out by to_csv(index=False)'
        )
    ends = columns_of_ends(fields, where, types)
    _check_others(fields, ends, piece)
    return Form(delimiter, fields, first, ends, has_names or _has_names(rest, ends))


def _check_others(names: list[str], ends: tuple[int, int], piece: Piece) -> None:
    check_names({name: None for at, name in enumerate(names) if at not in ends}, piece.path)


def names_in_comment(piece: Piece, delimiter: str, count: int) -> list[str]:
    """The names of columns in the comment above the first row, such as # src dst; or none.

    They are as many as there are columns, and name the ends.
    """
    text = next(reversed(piece.comments()), '')
    for names in text_lines.split(text, delimiter), re.findall(r'[^\s,;]+', text):
        is_even = len(names) == len({*names}) == count and not any(map(is_number, names))
        if is_even and ends_of(names) is not None:
            return names
    return []


def _is_header(
    fields: list[str], rest: list[list[str]], first: str, where: str, *, is_told: bool
) -> bool:
    """Whether the first line names the columns, as a comment does if `is_told`.

    Of edges between names it may not be known.
    """
    ends = ends_of(fields)
    is_plain = ends is not None and has_an_end([fields[end] for end in ends])
    if is_plain and not all(is_number(name) for name in fields):
        return True
    at_ends = ends or (0, 1)
    if any(is_number(name) for name in fields):  # years, or an edge
        rows = [[row[end] for end in at_ends if end < len(row)] for row in rest]
        is_named = not any(is_number(fields[end]) for end in at_ends)
        return is_named and bool(rows) and all(is_number(name) for row in rows for name in row)
    if not rest:
        return True
    numbers, of_ends = [*map(is_number, rest[0])], {name for row in rest for name in row[:2]}
    if any(numbers[2:]):
        return True
    if of_ends & {*fields[:2]}:
        return False
    if all(numbers) or (any(numbers) and fields[0] != fields[1]):  # of users and items, say
        return True
    if ends is not None:  # n1 and n2 may be nodes, if n7 is one
        return {_without_digits(fields[end]) for end in ends}.isdisjoint(
            map(_without_digits, of_ends)
        )
    if is_told:
        return False
    raise ValueError(
        f'expected a header such as src,dst, or ids, in {where} (got {first!r}, which may be '
        "either): write a line 'src,dst' above the first edge, with a name for every column"
    )


def _without_digits(name: str) -> str:
    return re.sub(r'\d', '', name)


def _has_names(rows: list[list[str]], ends: tuple[int, int]) -> bool:
    """Whether ids are text, by the first edge; or 01 or integers of more than 64 bits, by any."""
    ids = [[row[end] for end in ends if end < len(row)] for row in rows]
    if not all(map(is_number, ids[0] if ids else [])):
        return True
    numbers = (name for row in ids for name in row if name.isdecimal())
    return not all(is_integer(name) and is_plain(name) for name in numbers)


def _is_adjacency(rows: list[list[str]]) -> bool:
    """Whether as many rows as columns have only 0 and 1, or are symmetric."""
    if not all(map(is_number, chain(*rows))):
        return False
    numbers = [[*map(float, row)] for row in rows]
    return {*chain(*numbers)} <= {0, 1} or numbers == [[*of] for of in zip(*numbers, strict=True)]


def _names(rows: list[list[str]], where: str) -> list[str]:
    """The names of columns without a header: of three the last is a weight or a time."""
    count = len(rows[0])
    is_square = {*map(len, rows)} == {len(rows)} and count > 2
    if count > _MOST or (is_square and _is_adjacency(rows)):
        raise ValueError(
            f'expected a header such as src,dst,a,b above edges of {count} columns, in {where} '
            f"(got '{' '.join(rows[0])[:60]}', which may be of a matrix): scipy.sparse.save_npz("
            'path, scipy.sparse.csr_matrix(matrix)) saves a matrix whose entries are edges'
        )
    names = [*_COLUMNS[:count], *(f'column_{at}' for at in range(5, count + 1))]
    thirds = [row[2] for row in rows if len(row) == 3]
    if count == 3 and all(is_integer(t) and SECONDS[0] <= int(t) < SECONDS[1] for t in thirds):
        names[2] = 'time'
    return names
