"""The options of a cut, their checks, and what a method that reads edges gets."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.graph import TypedGraph
from pyg_sar.partition.memmap import BoolArray, IndexArray, Int64Array, count_into, edge_chunks

MethodLike = str | Tensor | dict[str, Tensor]
"""The argument 'method': a name, or the part of every node."""

READ_EDGES = ('metis', 'ldg', 'kaminpar')
METHODS = (*READ_EDGES, 'random', 'range', 'file:PATH')
OBJECTIVES = ('cut', 'volume')
BALANCES = ('nodes', 'edges')


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


def node_weights(
    graph: TypedGraph, balance: str, connected: BoolArray, num_parts: int
) -> Int64Array | None:
    """What every node weighs, int64 [N]: one, with ``'edges'`` plus its in-edges; None if all one.

    Nodes that are not `connected` weigh nothing. A hub that weighs more than a part weighs a part:
    it lies alone, and the others share the other parts evenly.
    """
    if balance == 'nodes':
        return None if connected.all() else connected.astype(np.int64)
    in_degree = torch.zeros(graph.num_nodes, dtype=torch.int64)
    of_type = graph.by_type(in_degree)
    for relation in graph.relations.values():
        for _, _, dst in edge_chunks(relation.edge_index):
            count_into(of_type[relation.dst], dst)
    weights: Int64Array = in_degree.numpy() + connected
    rest = int(weights.sum())
    for number, heaviest in enumerate(np.sort(weights)[: -num_parts - 1 : -1]):
        share = -(-rest // (num_parts - number))
        if heaviest <= share:
            break
        rest -= int(heaviest)
    return np.minimum(weights, share)


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
        """The most a part may hold: 5 % more than the mean; of few nodes the mean rounded up."""
        total = self.num_nodes if self.weights is None else int(self.weights.sum())
        mean = total / self.num_parts
        return max(math.ceil(mean), math.floor(1.05 * mean), 1)

    def loads(self, parts: Int64Array) -> Int64Array:
        """What every part holds, [P], with the part of every node."""
        return np.bincount(parts, self.weights, self.num_parts)


def check_positive(name: str, value: object) -> int:
    """Raises ValueError unless the argument of this name is an int >= 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"'{name}' must be an int >= 1 (got {value!r})")
    return int(value)


def check_seed(seed: object) -> int:
    """Raises ValueError unless `seed` is an int in [0, 2**31)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**31:
        raise ValueError(f"'seed' must be an int in [0, 2**31) (got {seed!r})")
    return int(seed)


def check_options(options: CutOptions) -> None:
    """Raises ValueError if there is no such method or option, or they do not go together."""
    method, name = options.method, options.name
    has_parts = isinstance(method, (Tensor, dict)) or name.startswith('file:')
    if not has_parts and (name == 'tensor' or name not in METHODS):
        raise ValueError(f"'method' must be one of {list(METHODS)} (got {method!r})")
    if options.objective not in OBJECTIVES:
        raise ValueError(
            f"'objective' must be one of {list(OBJECTIVES)} (got {options.objective!r})"
        )
    if options.balance not in BALANCES:
        raise ValueError(f"'balance' must be one of {list(BALANCES)} (got {options.balance!r})")
    if options.balance != 'nodes' and not options.reads_edges:
        raise ValueError(
            f"'balance' does not apply to method={name!r}, which reads no edges "
            f'(got {options.balance!r})'
        )
    package = metis_package() if name == 'metis' else name
    if package is None:
        raise ValueError("method 'metis' needs the package 'pymetis'; pip install pymetis")
    if options.objective == 'volume' and package != 'pymetis':
        raise ValueError(
            f"objective='volume' needs method='metis' by the package 'pymetis' (got {name!r})"
        )
    if name == 'kaminpar':
        try:
            import_module(name)
        except ImportError as error:
            raise ValueError(
                f"method 'kaminpar' needs the package 'kaminpar' (got: {error}); install it with "
                "pip install 'pyg_sar[kaminpar]'"
            ) from error


def metis_package() -> str | None:
    """The first package with METIS that can be imported."""
    for package in ('pymetis', 'pyg_lib', 'torch_sparse'):
        with suppress(ImportError):
            import_module(package)
            return package
    return None
