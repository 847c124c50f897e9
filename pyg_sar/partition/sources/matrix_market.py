"""Matrix Market files (.mtx): an entry in row i and column j is an edge from node i to node j."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources.matrices import by_name
from pyg_sar.partition.sources.pieces import PIECE, open_plain
from pyg_sar.shard.files import is_of_system, ordinary_file

_SPACE = 32  # signs up to this one part numbers from each other
_FEW = 1 << 16  # entries that may be announced in vain


def is_mtx(path: Path) -> bool:
    """Whether a file is named as Matrix Market files are."""
    return re.search(r'\.mtx(\.gz|\.bz2)?$', path.name) is not None and path.is_file()


def read_mtx(path: Path, scratch: Scratch = MEMORY) -> dict[str, Any]:
    """Reads a Matrix Market file of coordinates: arrays by name.

    They are ``edge_index`` int32 [2, E], or int64 of more than 2^31 nodes; ``edge_weight`` [E],
    int64 or float64, unless the file holds a pattern; and ``num_nodes``. A symmetric file gives
    both directions, its diagonal once. SciPy reads it, in memory.
    """
    ordinary_file(path)
    try:
        io = import_module('scipy.io')
    except ImportError as error:
        raise ValueError(
            f"expected SciPy to be installed to read '{path}' (got: {error}); install it with "
            "pip install 'pyg_sar[fast]'"
        ) from error
    try:
        rows, cols, entries, layout, field, symmetry = io.mminfo(path)
        if layout != 'coordinate':
            raise ValueError(f'a dense matrix, layout {layout!r}: scipy.sparse makes it sparse')
        if field == 'complex':
            raise ValueError('complex numbers, which are no weights: write their real part')
        if symmetry != 'general' and rows != cols:
            raise ValueError(f'a {symmetry} matrix of {rows} rows and {cols} columns')
        short = _check_numbers(path, entries, 2 if field == 'pattern' else 3, field)
        if short and entries > _FEW:
            raise ValueError(short)
        matrix = io.mmread(path)  # tells the line where a number is missing
        if short:
            raise ValueError(short)
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


def _check_numbers(path: Path, entries: int, per_entry: int, field: str) -> str:
    """Checks how many numbers a file holds, a piece at a time, and stops after those announced.

    SciPy ignores what is left in a line, and makes room for what the first lines announce. Returns
    what is to be told if there are fewer.
    """
    most, count, is_open = entries * per_entry, 0, False
    with open_plain(path) as file:
        line = first = _behind_sizes(file)
        left = (1 << 20) + 256 * entries  # bytes: a bound of what so many entries take
        while piece := file.read(PIECE):
            is_text = np.frombuffer(piece, np.uint8) > _SPACE
            starts = is_text.copy()
            starts[1:] &= ~is_text[:-1]
            starts[0] &= not is_open
            found = int(np.count_nonzero(starts))
            if line == first:
                _check_first(piece, line, per_entry, field)
            if odd := re.search(rb'[%.eE]' if 'integer' in field else b'%', piece):
                what = 'a comment behind the sizes' if odd[0] == b'%' else 'no integer'
                where = line + piece.count(b'\n', 0, odd.start())
                raise ValueError(f'{what}, in line {where} of a file of field {field}')
            if count + found > most:
                where = line + piece.count(b'\n', 0, int(np.flatnonzero(starts)[most - count]))
                raise ValueError(f'more than the {most} numbers announced, in line {where}')
            count, left, is_open = count + found, left - len(piece), bool(is_text[-1])
            line += piece.count(b'\n')
            if left < 0:
                raise ValueError(f'more text than {entries} entries take, up to line {line}')
    return f'{count} of the {most} numbers announced, up to line {line}' if count < most else ''


def _behind_sizes(file: IO[bytes]) -> int:
    """Reads up to the line of sizes; the number of the line behind it."""
    line = 1
    while text := file.readline(PIECE):
        line += 1
        if text.strip() and not text.startswith(b'%'):
            break
    return line


def _check_first(piece: bytes, line: int, per_entry: int, field: str) -> None:
    """Checks how many numbers the first line of a piece has that is not empty."""
    text = piece.lstrip()
    words = text.split(b'\n', 1)[0].split()
    if len(words) > per_entry:
        line += piece.count(b'\n', 0, len(piece) - len(text))
        raise ValueError(
            f'{len(words)} numbers in line {line}, where an entry of field {field} has {per_entry}'
        )


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
