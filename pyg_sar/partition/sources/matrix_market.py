"""Matrix Market files (.mtx): an entry in row i and column j is an edge from node i to node j."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources.matrices import by_name
from pyg_sar.partition.sources.pieces import PIECE, open_plain, whole_lines
from pyg_sar.shard.files import is_of_system, ordinary_file
from pyg_sar.utils.installed import reader


def is_mtx(path: Path) -> bool:
    """Whether a file is named as Matrix Market files are."""
    return re.search(r'\.(?i:mtx)(\.gz|\.bz2)?$', path.name) is not None and path.is_file()


def read_mtx(path: Path, scratch: Scratch = MEMORY) -> dict[str, Any]:
    """Reads a Matrix Market file of coordinates: arrays by name.

    They are ``edge_index`` int32 [2, E], or int64 of more than 2^31 nodes; ``edge_weight`` [E],
    int64 or float64, unless the file holds a pattern; and ``num_nodes``. A symmetric file gives
    both directions, its diagonal once. SciPy reads it, in memory.
    """
    ordinary_file(path)
    io = reader('scipy.io', path, 'SciPy')
    try:
        rows, cols, entries, layout, field, symmetry = io.mminfo(path)
        if layout != 'coordinate':
            raise ValueError(f'a dense matrix, layout {layout!r}: scipy.sparse makes it sparse')
        if field == 'complex':
            raise ValueError('complex numbers, which are no weights: write their real part')
        if symmetry != 'general' and rows != cols:
            raise ValueError(f'a {symmetry} matrix of {rows} rows and {cols} columns')
        _check_lines(path, entries, field)
        with open_plain(path) as file:
            matrix = io.mmread(_Ended(file))
    except Exception as error:  # Damaged files: errors of SciPy, gzip, zlib, ...
        if is_of_system(error):
            raise
        raise ValueError(
            f"expected a Matrix Market file of a sparse matrix in '{path}' (got: {error})"
        ) from error
    if symmetry != 'general':
        _tell_both_sides(path, matrix, entries)
    weights = None if field == 'pattern' else matrix.data
    if weights is not None and weights.dtype == np.uint64:
        if entries and weights.max() >= 1 << 63:
            raise ValueError(f"expected weights below 2^63 in '{path}' (got {weights.max()})")
        weights = weights.astype(np.int64)
    edge_index = scratch.empty((2, len(matrix.row)), torch.from_numpy(matrix.row).dtype)
    edge_index[0], edge_index[1] = torch.from_numpy(matrix.row), torch.from_numpy(matrix.col)
    return by_name(edge_index, weights, (rows, cols), path)


class _Ended:
    """A file with an end of line at its end: SciPy may look for it beyond a last line without."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.end = file, b'\n'

    def read(self, size: int = -1) -> bytes:
        """Reads at most so many bytes."""
        piece = self.file.read(size)
        if not piece:
            piece, self.end = self.end, b''
        return piece


_REAL = rb'-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf|infinity))'
_EMPTY = re.compile(rb'(?:^|\n)[ \t\r]*(?=\n)')
_VALUES = {'pattern': b'', 'integer': rb'[ \t]+-?\d+', 'unsigned-integer': rb'[ \t]+\d+'}


def _check_lines(path: Path, entries: int, field: str) -> None:
    """Checks all lines of entries, a piece at a time, and stops after as many as are announced.

    SciPy makes room for what is announced, ignores what is left in a line, and on some bytes ends
    the process.
    """
    value = _VALUES.get(field, rb'[ \t]+' + _REAL)
    entry = rb'[ \t]*\d+[ \t]+\d+' + value + rb'[ \t\r]*\n'
    lines = re.compile(rb'(?:' + entry + rb'|[ \t\r]*\n)*')
    count, left = 0, (1 << 20) + 256 * entries  # bytes: a bound of what so many entries take
    with open_plain(path) as file:
        line = _behind_sizes(file)
        for piece in whole_lines(file, 1 << 16, path, line=line):
            match = lines.match(piece)
            end = match.end() if match else 0
            if end < len(piece):
                line += piece.count(b'\n', 0, end)
                got = piece[end : end + 60].split(b'\n')[0].decode('ascii', 'replace').strip()
                expected = 'two ids' if field == 'pattern' else f'two ids and a number, {field},'
                raise ValueError(f'no {expected} in line {line}: {got!r}')
            found = piece.count(b'\n') - len(_EMPTY.findall(piece))
            if count + found > entries:
                filled = [at for at, text in enumerate(piece.split(b'\n')) if text.strip()]
                line += filled[entries - count]
                raise ValueError(f'more than the {entries} entries announced, in line {line}')
            count, left = count + found, left - len(piece)
            line += piece.count(b'\n')
            if left < 0:
                raise ValueError(f'more text than {entries} entries take, up to line {line}')
    if count < entries:
        raise ValueError(f'{count} of the {entries} entries announced, up to line {line - 1}')


def _behind_sizes(file: IO[bytes]) -> int:
    """Reads up to the line of sizes; the number of the line behind it."""
    line = 1
    while text := file.readline(PIECE):
        line += 1
        if text.strip() and not text.startswith(b'%'):
            break
    return line


def _tell_both_sides(path: Path, matrix: Any, entries: int) -> None:
    """Warns of a symmetric file with entries on both sides of the diagonal."""
    row, col = matrix.row[:entries], matrix.col[:entries]
    below, above = int(np.count_nonzero(row > col)), int(np.count_nonzero(row < col))
    if below and above:
        warnings.warn(
            f"'{path}' is symmetric and has entries on both sides of the diagonal ({below} below, "
            f'{above} above): each of them became two edges',
            stacklevel=2,
        )
