"""Graph partitioning with METIS, through pymetis, or else pyg-lib or torch-sparse.

Recursive bisection balances to 0.1 % where k-way leaves 3 %. On power-law graphs it cuts 2 to 7 %
less from 16 parts on; on WordNet with words up to 3 % more, and on a grid 12 %. So pymetis does
both, and k-way is taken if it cuts over 2 % less. pyg-lib and torch-sparse always bisect, and take
no seed.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.method import Problem

_SEED = 4321
"""METIS's own default: seed 0 gives what METIS gives when nobody asks for a seed."""

_WORTH = 0.98
"""K-way balances less well: it is taken if it cuts less than this share of bisection's edges."""

PACKAGES = ('pymetis', 'pyg_lib', 'torch_sparse')


def metis_parts(problem: Problem) -> Tensor:
    """The part of every node, int64 [N], by the first of the packages that is installed.

    Parts may be empty on graphs of a few nodes per part.
    """
    package = first_installed(PACKAGES)
    if package != 'pymetis':
        return _by_pyg(problem, package)
    if problem.options.objective == 'volume':
        return pymetis_parts(problem, recursive=False)[1]
    cut, parts = pymetis_parts(problem, recursive=True)
    cut_by_k_way, by_k_way = pymetis_parts(problem, recursive=False)
    largest, largest_by_k_way = (
        max(problem.loads(found.numpy()).max(), problem.cap) for found in (parts, by_k_way)
    )
    if largest != largest_by_k_way:  # not both are even: one has a hub, or few nodes
        return by_k_way if largest_by_k_way < largest else parts
    return by_k_way if cut_by_k_way < _WORTH * cut else parts


def first_installed(packages: tuple[str, ...]) -> str | None:
    """The first package that can be imported."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            continue
        return package
    return None


def pymetis_parts(
    problem: Problem, *, recursive: bool, rounds: int | None = None
) -> tuple[int, Tensor]:
    """What METIS has made small, and the part of every node: by recursive bisection or k-way.

    `rounds` of refinement are METIS's 10 by default.
    """
    pymetis = import_module('pymetis')
    is_volume = problem.options.objective == 'volume'
    more = {'objtype': int(pymetis.ObjType.VOL)} if is_volume else {}
    more |= {} if rounds is None else {'niter': rounds}
    # A graph of equal weights is given to METIS as one without any.
    found, parts = pymetis.part_graph(
        problem.num_parts,
        pymetis.CSRAdjacency(problem.indptr, problem.index),
        vweights=problem.weights,
        options=pymetis.Options(seed=_SEED + problem.options.seed, **more),
        recursive=recursive,
    )
    return found, torch.from_numpy(np.array(parts, dtype=np.int64))


def _by_pyg(problem: Problem, package: str | None) -> Tensor:
    csr = torch.from_numpy(problem.indptr), torch.from_numpy(problem.index)
    weight = None if problem.weights is None else torch.from_numpy(problem.weights)
    if package == 'pyg_lib':
        metis = import_module(package).partition.metis
        return metis(*csr, problem.num_parts, node_weight=weight, recursive=True)
    ops = torch.ops.torch_sparse
    if weight is None:
        return ops.partition(*csr, None, problem.num_parts, True)
    return ops.partition2(*csr, None, weight, problem.num_parts, True)
