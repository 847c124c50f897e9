"""Matrix Market files (.mtx): an entry in row i and column j is an edge from node i to node j."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyg_sar.partition.memmap import MEMORY, Scratch
from pyg_sar.partition.sources.matrices import by_name
from pyg_sar.partition.sources.pieces import PIECE, open_plain
from pyg_sar.shard.files import ordinary_file

_SPACE = 32  # signs up to this one part numbers from each other


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
        _check_numbers(path, entries, 2 if field == 'pattern' else 3, field)
        matrix = io.mmread(path)
    except (ValueError, OverflowError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
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


def _check_numbers(path: Path, entries: int, per_entry: int, field: str) -> None:
    """Checks how many numbers a file holds, a piece at a time, and stops after those announced.

    SciPy ignores what is left in a line, and makes room for what the first line announces.
    """
    with open_plain(path) as file:
        line = 0
        while text := file.readline(PIECE):
            line += 1
            if text.strip() and not text.startswith(b'%'):
                break  # the sizes
        most, count, left, is_open = entries * per_entry, 0, (1 << 20) + 256 * entries, False
        while piece := file.read(PIECE):
            is_text = np.frombuffer(piece, np.uint8) > _SPACE
            starts = is_text.copy()
            starts[1:] &= ~is_text[:-1]
            starts[0] &= not is_open
            is_open = bool(is_text[-1])
            found = int(np.count_nonzero(starts))
            if count == 0 and found and b'\n' in piece:
                lead = piece.lstrip()
                have = len(lead.split(b'\n', 1)[0].split())
                if have > per_entry:
                    at = line + 1 + piece.count(b'\n', 0, len(piece) - len(lead))
                    raise ValueError(
                        f'{have} numbers in line {at}: an entry of field {field} has {per_entry}'
                    )
            odd = re.search(rb'[.eE]', piece) if 'integer' in field else None
            if count + found > most or odd:
                at = odd.start() if odd else int(np.flatnonzero(starts)[most - count])
                where = f'in line {line + 1 + piece.count(bytes([10]), 0, at)}'
                raise ValueError(
                    f'a number that is no integer {where}, in field {field}'
                    if odd
                    else f'more than {entries} entries of {per_entry} numbers {where}'
                )
            count, left = count + found, left - len(piece)
            line += piece.count(b'\n')
            if left < 0:
                raise ValueError(f'more text than {entries} entries take')
    if count < most:
        raise ValueError(
            f'{count // per_entry} entries up to line {line}, where the first lines announce '
            f'{entries}'
            if count % per_entry == 0
            else f'{count} numbers, where {entries} entries have {most}'
        )


def _tell_both_sides(path: Path, matrix: Any, entries: int) -> None:
    """Warns of a symmetric file with entries on both sides of the diagonal."""
    row, col = matrix.row[:entries], matrix.col[:entries]
    below, above = int(np.count_nonzero(row > col)), int(np.count_nonzero(row < col))
    if below and above:
        warnings.warn(
            f"'{path}' is symmetric and has {below} entries below the diagonal and {above} above: "
            'each of them became two edges',
            stacklevel=2,
        )
