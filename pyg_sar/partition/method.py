"""A method of partitioning: what it computes, and which options it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pyg_sar.partition.balance import Balance
from pyg_sar.partition.mapped import FloatArray, IndexArray, Int64Array
from pyg_sar.partition.typed import TypedGraph

MethodLike = str | Tensor | dict[str, Tensor]
"""The argument 'method': a name, or the part of every node."""

OBJECTIVES = ('cut', 'volume')

ORDERS = ('cache', 'source')


@dataclass(frozen=True)
class CutOptions:
    """How nodes are assigned; :func:`pyg_sar.partition_graph` explains the fields.

    The command line and META.json are made of them. Complete options, as
    :func:`~pyg_sar.partition.assignment.choose` returns them, have None only where the method has
    no use for a field, a tuple as `balance`, and as `backend` the binding that is used.
    """

    method: MethodLike = 'metis'
    backend: str | None = 'auto'
    seed: int = 0
    objective: str | None = 'cut'
    balance: str | Sequence[str] | None = None
    passes: int | None = None
    threads: int | None = None
    order: str | None = None

    def provenance(self) -> dict[str, Any]:
        """Complete options for META.json."""
        method = self.method if isinstance(self.method, str) else 'tensor'
        return {**vars(self), 'method': method, 'balance': ','.join(self.balance or ()) or None}


@dataclass(frozen=True)
class Problem:
    """The arguments of a method that cuts a graph."""

    # int64 [N + 1]; the neighbours of node v are ``index[indptr[v]:indptr[v + 1]]``.
    indptr: Int64Array
    index: IndexArray  # int32 or int64, the neighbours, both ways; at least one in all
    balance: Balance
    num_parts: int  # number of parts P, at least 2
    options: CutOptions
    folder: Path | None = None  # for temporary files

    @cached_property
    def caps(self) -> FloatArray:
        """The most a part may hold of each constraint, [C]."""
        return self.balance.caps(self.num_parts)

    @property
    def weight(self) -> Int64Array:
        """The only weight of every node, int64 [N]; at least 1, as few packages bear zeros."""
        return np.maximum(self.balance.weights[:, 0], 1)


@dataclass(frozen=True)
class Method:
    """A way to assign nodes to parts: either `cut` or `assign`."""

    name: str  # what users call it
    # Reads edges: gives the part of every node, int64 [N], in one attempt or several, of which the
    # best by the objective is taken. Parts may be empty.
    cut: Callable[[Problem], list[Tensor]] | None = None
    # Reads no edges: gives the part of every node, int64 [N], for a number of parts.
    assign: Callable[[TypedGraph, int, CutOptions], Tensor] | None = None
    # Whether `cut` reads the graph with its duplicate edges and self loops.
    keeps_duplicates: bool = False
    several: bool = False  # whether `cut` balances several things; else one, nodes or edges
    objectives: tuple[str, ...] = ('cut',)  # what it can make small
    takes_passes: bool = False
    takes_threads: bool = False
    package: str | None = None  # what has to be installed
    install: str = ''
    # The bindings that there are of it, each a method; the first is the default.
    backends: tuple[Method, ...] = ()
