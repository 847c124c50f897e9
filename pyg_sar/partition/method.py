"""How nodes are assigned to parts: the options, and what a method that reads edges gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pyg_sar.partition.balance import largest_load
from pyg_sar.partition.mapped import IndexArray, Int64Array

MethodLike = str | Tensor | dict[str, Tensor]
"""The argument 'method': a name, or the part of every node."""

READ_EDGES = ('metis', 'ldg', 'kaminpar')

METHODS = (*READ_EDGES, 'random', 'range', 'file:PATH')

OBJECTIVES = ('cut', 'volume')


@dataclass(frozen=True)
class CutOptions:
    """How nodes are assigned; :func:`pyg_sar.partition_graph` explains the fields."""

    method: MethodLike = 'metis'
    seed: int = 0
    objective: str = 'cut'
    balance: str = 'nodes'

    @property
    def name(self) -> str:
        """The name of the method; 'tensor' of parts that the caller gives."""
        return self.method if isinstance(self.method, str) else 'tensor'

    @property
    def reads_edges(self) -> bool:
        """Whether the method cuts the graph; else objective and balance say nothing."""
        return self.name in READ_EDGES

    def provenance(self) -> dict[str, Any]:
        """The options for META.json."""
        of_cut = {'objective': self.objective, 'balance': self.balance} if self.reads_edges else {}
        return {'method': self.name, 'seed': self.seed, **of_cut}


@dataclass(frozen=True)
class Problem:
    """The arguments of a method that reads edges."""

    # int64 [N + 1]; the neighbours of node v are ``index[indptr[v]:indptr[v + 1]]``.
    indptr: Int64Array
    index: IndexArray  # int32 or int64, the neighbours, both ways; at least one in all
    weights: Int64Array | None  # of every node, int64 [N] and >= 0; None if all weigh one
    num_parts: int  # number of parts P, at least 2
    options: CutOptions
    folder: Path | None = None  # for temporary files

    @property
    def num_nodes(self) -> int:
        """Number of nodes N."""
        return len(self.indptr) - 1

    @property
    def cap(self) -> float:
        """The most a part may hold."""
        total = self.num_nodes if self.weights is None else int(self.weights.sum())
        return largest_load(total / self.num_parts)

    def loads(self, parts: Int64Array) -> Int64Array:
        """What every part holds, [P], with the part of every node."""
        return np.bincount(parts, self.weights, self.num_parts)
