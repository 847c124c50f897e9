"""Finds out whether the compiled loops can be had."""

from __future__ import annotations

import os
import warnings
from functools import cache
from types import ModuleType

import numpy as np


@cache
def loops(dtype: str = 'float32') -> ModuleType | None:
    """:mod:`pyg_sar.utils.numba_loops`, or None without numba.

    Also None where numba may not compile (its variable ``NUMBA_DISABLE_JIT``) or cannot, such as
    where it does not fit the installed numpy; then with a warning. The first call compiles the
    loops for rows of `dtype`, which takes a second and 100 MiB, and some seconds if it is the first
    on this machine. Loops for other rows are compiled at their first call.
    """
    if os.environ.get('NUMBA_DISABLE_JIT', '0') not in ('', '0'):
        return None
    try:
        from pyg_sar.utils import numba_loops

        rows, index, ptr = np.empty(0, dtype), np.empty(0, np.int64), np.zeros(1, np.int32)
        numba_loops.read_rows(rows, rows, index, 1)
        numba_loops.add_rows(rows, index, rows, 1)
        edges = ptr, ptr[:0], index, ptr[:0]
        numba_loops.sums_and_dots(rows, None, None, rows, *edges, rows, 1, 1, 0, 0, True)
        numba_loops.sums_and_dots(rows, rows, rows, rows, *edges, rows, 1, 1, 0, 0, True)
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name in ('llvmlite', 'numba')
        if not is_missing:
            warnings.warn(f'numba is installed but not used ({error})', stacklevel=2)
        return None
    return numba_loops
