"""Graph partitioning with METIS, through pymetis, pyg-lib or torch-sparse."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.methods.balance import Int64Array
from pyg_sar.partitioner.methods.metis_library import part_graph

BACKENDS = ('auto', 'pymetis', 'pyg-lib', 'torch-sparse')


def check_backend(backend: str) -> Any:
    """Imports the package behind `backend`.

    Raises:
        ValueError: If there is no such backend, or it is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"'backend' must be one of {list(BACKENDS)} (got {backend!r})")
    package = 'pymetis' if backend == 'auto' else backend
    try:
        return importlib.import_module(package.replace('-', '_'))
    except ImportError as error:
        how = "with 'pip install pymetis'"
        if package != 'pymetis':
            how = "as PyG's installation guide says, or use backend='pymetis'"
        raise ValueError(
            f"backend '{backend}' needs the package '{package}' (got: {error}); install it {how}"
        ) from error


def metis_assignment(
    indptr: Int64Array,
    index: Int64Array,
    num_parts: int,
    *,
    backend: str = 'auto',
    seed: int = 0,
    weights: Int64Array | None = None,
    recursive: bool = True,
    volume: bool = False,
) -> Tensor:
    """Assigns nodes to parts so that few edges are cut and the parts weigh the same.

    Recursive bisection balances to 0.1 % where k-way leaves 3 %. On power-law graphs it cuts 2 to
    7 % less from 16 parts on; on WordNet with words up to 3 % more.

    Args:
        indptr: int64 [N + 1], of a symmetric graph without duplicates and self loops.
        index: int64, the neighbours of every node, at least one in all.
        num_parts: Number of parts P, at least 2.
        backend: One of :data:`BACKENDS`; ``'auto'`` is pymetis.
        seed: METIS's seed. pyg-lib and torch-sparse offer none and always use METIS's own.
        weights: int64 [N, C] >= 0, what is balanced; the number of nodes if None. Only pymetis
            takes more than one column (Karypis and Kumar, Multilevel algorithms for
            multi-constraint graph partitioning, SC 1998).
        recursive: Whether by recursive bisection or k-way; the others always bisect.
        volume: Whether to minimise communication volume instead of the cut; k-way with pymetis.

    Returns:
        The part of every node, int64 [N]; parts may be empty on graphs of a few nodes per part.
    """
    module = check_backend(backend)
    weight = None
    if weights is not None and backend in ('pyg-lib', 'torch-sparse'):
        weight = torch.from_numpy(weights[:, 0].copy())
    parts: Tensor
    if backend == 'pyg-lib':
        parts = module.partition.metis(
            torch.from_numpy(indptr),
            torch.from_numpy(index),
            num_parts,
            node_weight=weight,
            recursive=True,
        )
    elif backend == 'torch-sparse':
        parts = _torch_sparse(indptr, index, num_parts, weight)
    elif weights is not None and weights.shape[1] > 1:
        parts = part_graph(
            module, indptr, index, weights, num_parts, seed=seed, recursive=recursive, volume=volume
        )
    else:
        options = pymetis_options(module, seed, volume)
        _, found = module.part_graph(
            num_parts,
            module.CSRAdjacency(indptr, index),
            vweights=None if weights is None else np.ascontiguousarray(weights[:, 0]),
            options=options,
            recursive=recursive,
        )
        parts = torch.from_numpy(np.array(found, dtype=np.int64))
    return parts.to(torch.int64)


def pymetis_options(pymetis: Any, seed: int, volume: bool) -> Any:
    """METIS's options; all others are its own defaults."""
    if volume:
        return pymetis.Options(seed=seed, objtype=int(pymetis.ObjType.VOL))
    return pymetis.Options(seed=seed)


def _torch_sparse(
    indptr: Int64Array, index: Int64Array, num_parts: int, weight: Tensor | None
) -> Tensor:
    ops, csr = torch.ops.torch_sparse, (torch.from_numpy(indptr), torch.from_numpy(index))
    result: Tensor
    if weight is None:
        result = ops.partition(*csr, None, num_parts, True)
    else:
        result = ops.partition2(*csr, None, weight, num_parts, True)
    return result
