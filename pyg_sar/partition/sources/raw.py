"""Files of numbers without a header, as np.memmap and ndarray.tofile write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyg_sar.partition.memmap import Array
from pyg_sar.shard.files import ordinary_file


def parse_shape(text: str) -> tuple[int, ...]:
    """Reads a shape such as ``'2,1000'``."""
    if not re.fullmatch(r'\d{1,18}(,\d{1,18})*,?', text):
        raise ValueError(f"'shape' must be whole numbers such as 2,1000 (got '{text}')")
    return tuple(int(size) for size in text.rstrip(',').split(','))


def read_raw(
    path: Path, shape: Sequence[int], dtype: str, *, is_mapped: bool = False
) -> dict[str, Array]:
    """Edges in a file of numbers alone: the array ``edge_index`` [2, E], in memory or mapped.

    `shape` is (2, E), or (E, 2) with a row for each edge; `dtype` is a type of integers.
    """
    ordinary_file(path)
    if len(shape) != 2 or 2 not in shape or any(size < 0 for size in shape):
        raise ValueError(f"'shape' must be 2,E or E,2 for E edges (got {tuple(shape)})")
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in 'iu':
        raise ValueError(f"'dtype' must be a type of integers such as int32 (got '{dtype}')")
    expected, size = math.prod(shape) * kind.itemsize, path.stat().st_size
    if expected != size:
        raise ValueError(
            f"expected {expected} bytes in '{path}', {shape[0]} times {shape[1]} numbers of {kind} "
            f'(got {size})'
        )
    if not size:
        return {'edge_index': np.empty((2, 0), kind)}
    edges: Array = np.asarray(np.memmap(path, kind, 'c', 0, tuple(shape)))
    edges = edges if is_mapped else np.array(edges)
    return {'edge_index': edges if shape[0] == 2 else edges.T}
