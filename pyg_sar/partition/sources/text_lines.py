"""Text as lists of edges come: comments, fields by commas, semicolons, tabs or spaces, a header.

A file is read in pieces of whole lines, so that memory does not grow with it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

PIECE = 1 << 22
"""Bytes of a piece, if lines are no longer."""

COMPRESSED = {'.gz': 'gzip', '.bz2': 'bz2', '.zst': 'zstd'}

_COMMENT = re.compile(rb'^[ \t]*[#%][^\n]*\n', re.MULTILINE)

_QUOTED = re.compile(r'\s*(?:(?:"[^"]*"|[-+.\d]\S*)(?:\s+|$))+')
"""A line of fields in quotes and numbers, apart by spaces, as R's write.table has them."""


def text_suffix(path: Path) -> str:
    """The suffix of a file in small letters, without that of its compression."""
    name = path.name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return Path(name).suffix


@dataclass(frozen=True)
class Piece:
    """Some lines of a file, each with its end."""

    path: Path
    number: int  # of the piece, counted from 0
    content: bytes
    done: float  # how much of the file has been read with it, from 0 to 1

    def first_line(self) -> int:
        """The number of its first line, counted from 1; found by reading the file again."""
        return 1 + sum(p.content.count(b'\n') for p in islice(pieces(self.path), self.number))

    def lines(self) -> Iterator[str]:
        """The texts of the lines that have a row."""
        return (text for _, text in self.numbered_lines(0))

    def numbered_lines(self, first: int) -> Iterator[tuple[int, str]]:
        """The same, each with its number, where the first line has the number `first`."""
        for number, line in enumerate(_lines(self.content), first):
            text = line.decode(errors='replace').rstrip('\r')
            if text.strip() and text.lstrip()[0] not in '#%':
                yield number, text

    def comments(self) -> list[str]:
        """The texts of the comments in front of the first row."""
        texts = (line.decode(errors='replace').strip() for line in _lines(self.content))
        comments = takewhile(lambda text: not text or text[0] in '#%', texts)
        return [text.lstrip('#% ') for text in comments if text]


def _lines(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        end = content.find(b'\n', start)
        yield content[start:end]
        start = end + 1


def pieces(path: Path, size: int = PIECE) -> Iterator[Piece]:
    """The lines of a file, plain or compressed."""
    pyarrow = import_module('pyarrow')
    num_bytes, count, rest = max(path.stat().st_size, 1), 0, b''
    with pyarrow.OSFile(str(path)) as file, _unpacked(file, path) as stream:
        while block := _read(stream, size, path):
            if not count and not rest:
                block = block.removeprefix(b'\xef\xbb\xbf')
            if b'\0' in block:
                raise ValueError(f"expected lines of text in '{path}' (got other bytes)")
            if re.search(rb'\r[^\r\n]', block):
                raise ValueError(
                    rf"expected lines that end in \n or \r\n in '{path}' (got \r alone): "
                    rf"tr '\r' '\n' < {path} makes such lines"
                )
            end = block.rfind(b'\n') + 1
            if not end and len(rest) > 8 * size:
                raise ValueError(
                    f"expected lines of edges in '{path}' (got one of more than {8 * size} bytes)"
                )
            if end:
                yield Piece(path, count, rest + block[:end], file.tell() / num_bytes)
                count, rest = count + 1, b''
            rest += block[end:]
    if rest:
        yield Piece(path, count, rest + b'\n', 1.0)


def _unpacked(file: Any, path: Path) -> Any:
    codec = COMPRESSED.get(path.suffix.lower())
    return file if codec is None else import_module('pyarrow').CompressedInputStream(file, codec)


def _read(stream: Any, size: int, path: Path) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError as error:
        if error.errno:
            raise
        raise ValueError(f"expected the whole of '{path}' (got: {error})") from error


def without_comments(content: bytes) -> tuple[bytes, int]:
    """The lines that are no comments, and how many were."""
    if b'#' not in content and b'%' not in content:
        return content, 0
    return _COMMENT.subn(b'', content)


def is_matrix_market(piece: Piece) -> bool:
    """Whether a file begins as Matrix Market files do."""
    return piece.content[:14].lower() == b'%%matrixmarket'


def is_konect(piece: Piece) -> bool:
    """Whether a file begins as those of KONECT do."""
    return re.match(rb'\s*%\s*(sym|asym|bip)\b', piece.content) is not None


def check_comments(piece: Piece, delimiter: str, count: int, *, has_header: bool) -> None:
    """Raises ValueError of a comment that may be an edge between names, as #a,b.

    In front of a header there are no edges.
    """
    is_behind = piece.number > 0 or not has_header
    for number, line in enumerate(_lines(piece.content)):
        text = line.decode(errors='replace').strip()
        if text[:1] not in ('#', '%'):
            is_behind = is_behind or text != ''
            continue
        fields = split(text, delimiter) if is_behind and text[1:2].strip() else []
        if len(fields) == count and (delimiter != ' ' or fields[1][0] in '#%'):
            raise ValueError(
                f'expected an edge or a comment in line {piece.first_line() + number} of '
                f"'{piece.path}' (got {text[:80]!r}, which may be either): write {text[0]} as "
                'another letter, or take the line out'
            )


def by_single_spaces(content: bytes) -> bytes:
    """Lines whose fields are apart by spaces and tabs, with one space between two fields."""
    content = content.replace(b'\r\n', b'\n').replace(b'\t', b' ')
    while b'  ' in content:
        content = content.replace(b'  ', b' ')
    return content.replace(b' \n', b'\n').replace(b'\n ', b'\n').lstrip(b' \n')


def without_odd_quotes(content: bytes, delimiter: str) -> tuple[bytes, bool]:
    """Lines with no blank before a quote, and whether they then are others.

    Between spaces, quotes otherwise are letters of names.
    """
    is_spaces = delimiter == ' '
    odd = rb'(?<!\S)"[^"\n]*"(?!\S)' if is_spaces else rb'(?:^|[,;\t])[ \t]+"'
    if b'"' not in content or not re.search(odd, content, re.MULTILINE):
        return content, False
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator='\n')
    lines = content.decode(errors='surrogateescape').replace('\r\n', '\n').split('\n')
    writer.writerows(split(line, delimiter) for line in lines if line.strip())
    return file.getvalue().encode(errors='surrogateescape'), True


def split(text: str, delimiter: str) -> list[str]:
    """The fields of a line; those by a space are apart by any spaces and tabs."""
    if delimiter == ' ':
        if '"' in text and _QUOTED.fullmatch(text):
            return [name or word for name, word in re.findall(r'"([^"]*)"|(\S+)', text)]
        return text.split()
    try:
        fields = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(
            f'expected fields by {delimiter!r} in {text[:80]!r} (got: {error})'
        ) from error
    return [field.strip() for field in fields]


def delimiter_of(lines: list[str]) -> str:
    """What stands between the fields of lines: a comma, semicolon or tab, or spaces and tabs.

    Between tabs a name may have spaces, if only of a later line, and commas. Where all are numbers,
    spaces are between fields as well.
    """
    by_tabs = [line.strip().split('\t') for line in lines]
    is_even = len({*map(len, by_tabs)}) == 1 and len(by_tabs[0]) > 1
    for sign in ',;':
        if sign in lines[0]:
            by_sign = re.compile(rf'\t *{sign}|{sign} *\t')
            return '\t' if is_even and not any(map(by_sign.search, lines)) else sign
    has_spaces = any(' ' in field.strip() for fields in by_tabs for field in fields)
    has_names = not any(all(map(is_number, line.split())) for line in lines[:2])
    has_ends = any(line != line.strip() for line in lines)
    by_tab = has_spaces or (has_names and not has_ends and len(lines) > 1)
    is_text = not all(map(is_number, lines[0].split()))
    return '\t' if is_even and by_tab and is_text else ' '


def is_number(text: str) -> bool:
    """Whether a field is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return '_' not in text


def is_integer(text: str) -> bool:
    """Whether a field is an integer of 64 bits."""
    return re.fullmatch(r'-?\d+', text) is not None and -(1 << 63) <= int(text) < 1 << 63


def is_plain(text: str) -> bool:
    """Whether a field has no zero in front of its other digits."""
    return re.match(r'-?0\d', text) is None


def is_name(text: str) -> bool:
    """Whether a field may be the name of a node."""
    return text != ''


def check_zeros(
    piece: Piece, names: list[str], ends: tuple[int, int], delimiter: str, skipped: int
) -> None:
    """Raises ValueError of an id such as 01, which is no number, as 1 may be another."""
    content = b'\n' + piece.content
    if any(re.search(sign + b'0[0-9]', content) for sign in (b'\n', *_SIGNS)):
        checks: dict[str, Callable[[str], bool]] = {
            name: is_plain if at in ends else _is_any for at, name in enumerate(names)
        }
        explain(piece, delimiter, checks, skipped)


def _is_any(text: str) -> bool:
    return True


_SIGNS = b'\t', b' ', b',', b';', b'"'


def explain(
    piece: Piece,
    delimiter: str,
    checks: dict[str, Callable[[str], bool]],
    skipped: int = 0,
) -> None:
    """Raises ValueError with the first line of a piece that is not as it must be.

    `checks` are those of the fields, by the name of their column; `skipped` lines are a header.
    """
    for number, text in islice(piece.numbered_lines(piece.first_line()), skipped, None):
        fields, where = split(text, delimiter), f"line {number} of '{piece.path}'"
        if len(fields) != len(checks):
            raise ValueError(
                f'expected {len(checks)} columns in {where}, as in the first (got {len(fields)}: '
                f'{text[:80]!r})'
            )
        for column, (name, field) in enumerate(zip(checks, fields, strict=True), 1):
            if not checks[name](field):
                hint = ''
                if checks[name] is is_number:
                    hint = ': leave the column out, or write numbers'
                    hint += ' with decimal points' * bool(re.fullmatch(r'-?\d+,\d+', field))
                elif re.fullmatch(r'\d+', field):
                    what = 'a zero in front' if checks[name] is is_plain else 'more than 64 bits'
                    hint = f', of {what}: --relabel takes ids as names'
                raise ValueError(
                    f"expected {_KINDS[checks[name]]} in column {column}, '{name}', of {where} "
                    f'(got {field!r}){hint}'
                )
        if '\ufffd' in text:  # what was decoded in the place of other bytes
            raise ValueError(f'expected text in UTF-8 in {where} (got {text[:80]!r})')


_KINDS: dict[Callable[[str], bool], str] = {
    is_integer: 'an integer',
    is_plain: 'an integer',
    is_number: 'a number',
    is_name: 'a name',
}
