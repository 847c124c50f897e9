"""KaMinPar: few cut edges in less time than METIS, on several threads; an optional package.

Gottesbueren, Heuer, Sanders, Schulz and Seemaier, Deep multilevel graph partitioning, ESA 2021.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from typing import IO

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.method import Method, Problem

_IMBALANCE = 0.03
"""By how much the largest part may exceed the mean; the default of KaMinPar and METIS's k-way."""


def _kaminpar(problem: Problem) -> list[Tensor]:
    """One thread gives the same parts for the same seed, several do not."""
    kaminpar = import_module('kaminpar')
    # The package reads graphs from files alone. This one has no name: nothing is left of it.
    with tempfile.TemporaryFile(dir=problem.folder) as file:
        _write(file, problem)
        path = f'/proc/self/fd/{file.fileno()}'
        graph = kaminpar.load_graph(path, kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(problem.options.seed)
    partitioner = kaminpar.KaMinPar(problem.options.threads, kaminpar.default_context())
    return [torch.tensor(partitioner.compute_partition(graph, problem.num_parts, _IMBALANCE))]


def _write(file: IO[bytes], problem: Problem) -> None:
    """ParHiP's binary format: a header, the place of every node's neighbours, these, weights."""
    num_nodes, is_equal = len(problem.indptr) - 1, problem.balance.is_equal
    header = [1 + 2 * is_equal, num_nodes, len(problem.index)]  # bits: no weights of edges, nodes
    numbers = [np.array(header), 8 * (problem.indptr + len(header) + num_nodes + 1), problem.index]
    for array in numbers if is_equal else [*numbers, problem.weight]:
        array.astype(np.int64, copy=False).tofile(file)
    file.flush()


KAMINPAR = Method('kaminpar', _kaminpar, package='kaminpar', takes_threads=True)
