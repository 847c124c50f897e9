"""Graph partitioning with METIS, through pymetis, pyg-lib or torch-sparse.

Recursive bisection balances to 0.1 % where k-way leaves 3 %. On power-law graphs it cuts 2 to 7 %
less from 16 parts on; on WordNet with words up to 3 % more, and on a grid 12 %. So pymetis does
both, and k-way is taken if it cuts over 2 % less. pyg-lib and torch-sparse always bisect, and take
no seed.

Several weights per node are those of Karypis and Kumar, Multilevel algorithms for multi-constraint
graph partitioning, SC 1998. pymetis passes one weight on; the METIS inside it takes any number.
That it exports METIS's functions is nobody's promise: all about it is checked before the call.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.mapped import Int64Array
from pyg_sar.partition.method import OBJECTIVES, Method, Problem
from pyg_sar.utils.private_names import find

_SEED = 4321
"""METIS's own default: seed 0 gives what METIS gives when nobody asks for a seed."""

_METIS_OK = 1
_NUM_OPTIONS = 40


def _pymetis(problem: Problem) -> list[Tensor]:
    attempts = [metis_assignment(problem, recursive=True)]
    # METIS's volume objective is at times worse in volume than its cut objective.
    is_volume = problem.options.objective == 'volume'
    if is_volume or problem.balance.is_single:
        attempts.append(metis_assignment(problem, recursive=False, volume=is_volume))
    return attempts


def metis_assignment(
    problem: Problem, *, recursive: bool, volume: bool = False, rounds: int | None = None
) -> Tensor:
    """Assigns nodes to parts with pymetis, by recursive bisection or k-way.

    `volume` minimises communication volume instead of the cut; k-way only. `rounds` of refinement
    are METIS's 10 by default, of a balance of one thing. Parts may be empty on graphs of a few
    nodes per part.
    """
    pymetis = import_module('pymetis')
    indptr, index, num_parts = problem.indptr, problem.index, problem.num_parts
    seed = _SEED + problem.options.seed
    # A graph of equal weights is given to METIS as one without any.
    weights = None if problem.balance.is_equal else problem.balance.for_metis
    if weights is not None and weights.shape[1] > 1:
        return part_graph(problem, seed, recursive=recursive, volume=volume)
    more = {'objtype': int(pymetis.ObjType.VOL)} if volume else {}
    more |= {} if rounds is None else {'niter': rounds}
    _, parts = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(indptr, index),
        vweights=None if weights is None else np.ascontiguousarray(weights[:, 0]),
        options=pymetis.Options(seed=seed, **more),
        recursive=recursive,
    )
    return torch.from_numpy(np.array(parts, dtype=np.int64))


def part_graph(problem: Problem, seed: int, *, recursive: bool, volume: bool) -> Tensor:
    """Assigns nodes with several weights, by METIS_PartGraphRecursive or METIS_PartGraphKway."""
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
    # nvtxs, ncon, xadj, adjncy, vwgt, vsize, adjwgt
    graph = [_number(len(parts)), _number(weights.shape[1]), *map(_pointer, arrays), None, None]
    # nparts, tpwgts, ubvec, options
    wanted = [_number(problem.num_parts), None, None, _pointer(options)]
    status = call(*graph, *wanted, ctypes.byref(objective), _pointer(parts))
    if status != _METIS_OK:
        raise RuntimeError(f'METIS failed (got status {status})')
    return torch.from_numpy(parts)


def _library(pymetis: Any) -> tuple[ctypes.CDLL, Any]:
    try:
        internal = pymetis._internal
        width = find('pymetis._internal._idx_type_width')()
        keys = internal.options_indices
        library = ctypes.CDLL(internal.__file__)
        functions = 'METIS_SetDefaultOptions', 'METIS_PartGraphRecursive', 'METIS_PartGraphKway'
        for name in functions:
            getattr(library, name).restype = ctypes.c_int
    except (ImportError, AttributeError, OSError, TypeError) as error:
        reason = f'{error}'
    else:
        reason = f'{width}-bit indices'
        if width == 64:
            return library, keys
    raise ValueError(
        "balancing several things needs a pymetis that exports METIS's functions with 64-bit "
        f"indices (got {reason}); balance one of 'nodes' and 'edges', or use method='ldg' or "
        "'fennel'"
    )


def _number(value: int) -> Any:
    return ctypes.byref(ctypes.c_int64(value))


def _pointer(array: Int64Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _pyg_lib(problem: Problem) -> list[Tensor]:
    metis, weight = import_module('pyg_lib').partition.metis, _weight(problem)
    csr = torch.from_numpy(problem.indptr), torch.from_numpy(problem.index)
    return [metis(*csr, problem.num_parts, node_weight=weight, recursive=True)]


def _torch_sparse(problem: Problem) -> list[Tensor]:
    import_module('torch_sparse')
    ops, weight = torch.ops.torch_sparse, _weight(problem)
    csr = torch.from_numpy(problem.indptr), torch.from_numpy(problem.index)
    if weight is None:
        return [ops.partition(*csr, None, problem.num_parts, True)]
    return [ops.partition2(*csr, None, weight, problem.num_parts, True)]


def _weight(problem: Problem) -> Tensor | None:
    balance = problem.balance
    return None if balance.is_equal else torch.from_numpy(balance.for_metis[:, 0].copy())


_INSTALL = " where PyG's installation guide has a wheel for your torch, or use backend='pymetis'"
_PYMETIS = Method('pymetis', _pymetis, several=True, objectives=OBJECTIVES, package='pymetis')
_PYG_LIB = Method('pyg-lib', _pyg_lib, package='pyg_lib', install=_INSTALL)
_TORCH_SPARSE = Method('torch-sparse', _torch_sparse, package='torch_sparse', install=_INSTALL)

METIS = replace(_PYMETIS, name='metis', backends=(_PYMETIS, _PYG_LIB, _TORCH_SPARSE))
