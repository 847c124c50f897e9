"""Finds out whether the compiled loops can be had."""

from __future__ import annotations

import os
import warnings
from functools import cache
from types import ModuleType

import numpy as np


@cache
def loops() -> ModuleType | None:
    """:mod:`pyg_sar.compiled.loops`, or None without numba.

    Also None where numba may not compile (its variable ``NUMBA_DISABLE_JIT``) or does not fit the
    numpy that is installed; a warning tells of the latter. The first call imports numba and starts
    its compiler, which takes half a second and 120 MiB.
    """
    if os.environ.get('NUMBA_DISABLE_JIT', '0') not in ('', '0'):
        return None
    try:
        import numba
    except ModuleNotFoundError:
        return None
    except Exception as error:
        warnings.warn(f'numba is not used: its import failed ({error})', stacklevel=2)
        return None
    del numba
    from pyg_sar.compiled import loops

    nothing = np.empty(0, np.float32)
    loops.read_rows(nothing, nothing, np.empty(0, np.int64), 1)  # starts the compiler
    return loops
