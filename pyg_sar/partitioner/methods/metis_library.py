"""METIS with several weights per node: its C functions, out of pymetis's extension module.

pymetis passes one weight on; the library inside it takes any number. That it exports METIS's
functions is nobody's promise, so everything about it is checked before the call.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.methods.method import Problem
from pyg_sar.partitioner.on_disk.mapped import Int64Array

_METIS_OK = 1
_NUM_OPTIONS = 40


def part_graph(problem: Problem, seed: int, *, recursive: bool, volume: bool) -> Tensor:
    """Calls METIS_PartGraphRecursive or METIS_PartGraphKway with the weights ``for_metis``.

    Args:
        problem: The graph and what is balanced.
        seed: METIS's seed.
        recursive: Whether by recursive bisection.
        volume: Whether to minimise communication volume; k-way only.

    Returns:
        The part of every node, int64 [N].

    Raises:
        ValueError: If this pymetis does not export METIS as expected.
        RuntimeError: If METIS fails.
    """
    pymetis = import_module('pymetis')
    weights = problem.balance.for_metis
    library, keys = _library(pymetis)
    options = np.full(_NUM_OPTIONS, -1, dtype=np.int64)
    if library.METIS_SetDefaultOptions(_pointer(options)) != _METIS_OK:
        raise RuntimeError('METIS_SetDefaultOptions failed')
    options[keys.SEED] = seed
    if volume:
        options[keys.OBJTYPE] = int(pymetis.ObjType.VOL)
    arrays = [
        np.ascontiguousarray(array, dtype=np.int64)
        for array in (problem.indptr, problem.index, weights)
    ]
    parts = np.empty(len(problem.indptr) - 1, dtype=np.int64)
    objective = ctypes.c_int64()
    call = library.METIS_PartGraphRecursive if recursive else library.METIS_PartGraphKway
    # nvtxs, ncon, xadj, adjncy, vwgt, vsize, adjwgt, nparts, tpwgts, ubvec, options, edgecut, part
    status = call(
        _number(len(parts)),
        _number(weights.shape[1]),
        *(_pointer(array) for array in arrays),
        None,
        None,
        _number(problem.num_parts),
        None,
        None,
        _pointer(options),
        ctypes.byref(objective),
        _pointer(parts),
    )
    if status != _METIS_OK:
        raise RuntimeError(f'METIS failed (got status {status})')
    return torch.from_numpy(parts)


def _library(pymetis: Any) -> tuple[ctypes.CDLL, Any]:
    """The library that exports METIS, and where its options lie."""
    try:
        internal = pymetis._internal
        width = internal._idx_type_width()
        keys = internal.options_indices
        library = ctypes.CDLL(internal.__file__)
        functions = 'METIS_SetDefaultOptions', 'METIS_PartGraphRecursive', 'METIS_PartGraphKway'
        for name in functions:
            getattr(library, name).restype = ctypes.c_int
    except (AttributeError, OSError, TypeError) as error:
        found = f'{error}'
    else:
        found = f'{width}-bit indices'
        if width == 64:
            return library, keys
    raise ValueError(
        "balancing several things needs a pymetis that exports METIS's functions with 64-bit "
        f"indices (got {found}); balance one of 'nodes' and 'edges', or use method='ldg' or "
        "'fennel'"
    )


def _number(value: int) -> Any:
    return ctypes.byref(ctypes.c_int64(value))


def _pointer(array: Int64Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
