"""KaMinPar: few cut edges in less time than METIS; an optional package.

Gottesbueren, Heuer, Sanders, Schulz and Seemaier, Deep multilevel graph partitioning, ESA 2021.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from typing import IO

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.options import Problem

_IMBALANCE = 0.03
"""By how much the largest part may exceed the mean; the default of KaMinPar and METIS's k-way."""


def kaminpar_parts(problem: Problem) -> Tensor:
    """The part of every node, int64 [N]; on one thread, as several give other parts every time."""
    kaminpar = import_module('kaminpar')
    # The package reads graphs from files alone. This one has no name: nothing is left of it.
    with tempfile.TemporaryFile(dir=problem.folder) as file:
        _write(file, problem)
        path = f'/proc/self/fd/{file.fileno()}'
        graph = kaminpar.load_graph(path, kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(problem.options.seed)
    partitioner = kaminpar.KaMinPar(1, kaminpar.default_context())
    return torch.tensor(partitioner.compute_partition(graph, problem.num_parts, _IMBALANCE))


def _write(file: IO[bytes], problem: Problem) -> None:
    """ParHiP's binary format: a header, the place of every node's neighbours, these, weights."""
    num_nodes, weights = problem.num_nodes, problem.weights
    # Bits of the first: no weights of edges, no weights of nodes.
    header = [3 if weights is None else 1, num_nodes, len(problem.index)]
    numbers = [np.array(header), 8 * (problem.indptr + len(header) + num_nodes + 1), problem.index]
    if weights is not None:
        numbers.append(np.maximum(weights, 1))  # which takes no zeros
    for array in numbers:
        array.astype(np.int64, copy=False).tofile(file)
    file.flush()
