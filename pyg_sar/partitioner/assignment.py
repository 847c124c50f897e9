"""The part of every node: the options of a method are checked, and the method is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.graph.checks import check_positive
from pyg_sar.partitioner.graph.typed import TypedGraph
from pyg_sar.partitioner.methods import METHODS
from pyg_sar.partitioner.methods.balance import balance_weights, parse_balance
from pyg_sar.partitioner.methods.given import GIVEN, equal_runs, fill_empty_parts
from pyg_sar.partitioner.methods.method import (
    OBJECTIVES,
    ORDERS,
    Method,
    MethodLike,
    MethodOptions,
    Problem,
)
from pyg_sar.partitioner.methods.rebalance import rebalance, refine
from pyg_sar.partitioner.on_disk.mapped import BoolArray, IndexArray, trim
from pyg_sar.partitioner.on_disk.neighbours import neighbours
from pyg_sar.partitioner.on_disk.rows import edge_chunks
from pyg_sar.shard.format.file_names import NodeKey

_WORTH = 0.98
"""A later attempt is taken if it cuts less than this share of the first one's edges. It is METIS's
k-way, which balances less well."""


def backend_names() -> list[str]:
    """What 'backend' may be."""
    return ['auto', *(binding.name for method in METHODS.values() for binding in method.backends)]


def choose(
    method: MethodLike,
    *,
    backend: str = 'auto',
    seed: int = 0,
    objective: str = 'cut',
    balance: str | Sequence[str] | None = None,
    passes: int | None = None,
    threads: int | None = None,
    order: str | None = None,
    is_hetero: bool = False,
    has_train_mask: bool = False,
) -> MethodOptions:
    """Checks the options of :func:`pyg_sar.partition_graph`; fills in defaults."""
    name = method if isinstance(method, str) else 'tensor'
    found = METHODS.get(name)
    if isinstance(method, (Tensor, dict)) or name.startswith('file:'):
        found = GIVEN
    if found is None:
        raise ValueError(f"'method' must be one of {list(METHODS)} (got {method!r})")
    if backend not in backend_names():
        raise ValueError(f"'backend' must be one of {backend_names()} (got {backend!r})")
    bindings = {binding.name: binding for binding in found.backends}
    what = f'method={name!r}' + (f', backend={backend!r}' if bindings else '')

    def applies(option: str, can: Callable[[Method], bool]) -> None:
        assert found is not None
        if not can(found):
            known = [method.name for method in METHODS.values() if can(method)]
            raise ValueError(f'{option} applies to {known} alone (got {what})')

    if backend != 'auto':
        applies(f'backend={backend!r}', lambda method: bool(method.backends))
    if bindings:
        found = found.backends[0] if backend == 'auto' else bindings[backend]
    _check_package(found, f"method '{name}'" if found.name == name else f"backend '{found.name}'")
    if objective not in OBJECTIVES:
        raise ValueError(f"'objective' must be one of {list(OBJECTIVES)} (got {objective!r})")
    applies(f'objective={objective!r}', lambda method: objective in method.objectives)
    if passes is not None:
        applies("'passes'", lambda method: method.takes_passes)
        check_positive('passes', passes)
    if threads is not None:
        applies("'threads'", lambda method: method.takes_threads)
        check_positive('threads', threads)

    metis = METHODS['metis']
    if order is None:
        order = 'cache' if name == metis.name and find_spec(str(metis.package)) else 'source'
    if order not in ORDERS:
        raise ValueError(f"'order' must be one of {list(ORDERS)} (got {order!r})")
    if order == 'cache':
        _check_package(metis, "order='cache'")

    names: tuple[str, ...] = ('types',) if is_hetero and found.several else ('nodes',)
    if balance is not None:
        if found.cut is None:
            raise ValueError(f"'balance' does not apply to {what} (got {balance!r})")
        names = parse_balance(balance, is_hetero=is_hetero, has_train_mask=has_train_mask)
        if names not in (('nodes',), ('edges',)):
            applies("'balance' beyond one of 'nodes' and 'edges'", lambda method: method.several)
    return MethodOptions(
        method=found,
        given=method,
        backend=found.name if bindings else None,
        seed=seed,
        objective=objective,
        balance=names if found.cut is not None else (),
        passes=MethodOptions.passes if passes is None else passes,
        threads=threads or 1,
        order=order,
    )


def _check_package(method: Method, what: str) -> None:
    if method.package is None:
        return
    try:
        import_module(method.package)
    except ImportError as error:
        package = method.package.replace('_', '-')
        how = f"with pip install 'pyg_sar[{package}]'{method.install}"
        raise ValueError(
            f"{what} needs the package '{package}' (got: {error}); install it {how}"
        ) from error


def assign_nodes(
    graph: TypedGraph, num_parts: int, options: MethodOptions
) -> dict[NodeKey, Tensor]:
    """The part of every node, int32 [N], by type.

    A partitioner sees the nodes of all types in one graph, undirected. A type without edges is
    dealt out evenly. Raises ValueError if the parts given are not N integers in [0, P).
    """
    if options.method.place is not None:
        parts = options.method.place(graph, num_parts, options)
    elif num_parts == 1:
        parts = torch.zeros(graph.num_nodes, dtype=torch.int64)
    else:
        parts = _cut(graph, num_parts, options)
    trim()  # What is left of METIS would else be held while shards are written.
    return graph.by_type(parts.to(torch.int32))


def _cut(graph: TypedGraph, num_parts: int, options: MethodOptions) -> Tensor:
    """Parts by a method that reads edges, of the types one after another, int64 [N]."""
    method = options.method
    assert method.cut is not None
    connected = _connected(graph)
    balance = balance_weights(graph, options.balance, connected)
    edge_index = graph.homogeneous_edge_index()
    keep = method.keeps_duplicates
    # METIS takes 64 bits, and what keeps duplicates has more to read.
    dtype = np.int32 if keep and graph.num_nodes < 2**31 else np.int64
    near = neighbours(edge_index, graph.num_nodes, graph.scratch, keep_duplicates=keep)
    indptr, index = near.csr(dtype=dtype)
    del near
    problem = Problem(indptr, index, balance, num_parts, options)
    # Without edges there is nothing to cut.
    found = method.cut(problem) if index.size else [_deal(balance.weights.sum(axis=1), num_parts)]
    if keep or not balance.is_single:
        # No part above its caps, then as few cut edges as single moves within them can reach.
        even = [refine(problem, rebalance(problem, parts.numpy())) for parts in found]
        found = [torch.from_numpy(parts) for parts in even]
    parts = _least(found, graph, options.objective)
    for key, start in graph.offsets.items():
        nodes = slice(start, start + graph.nodes[key].num_nodes)
        if graph.is_hetero and not connected[nodes].any():
            parts[nodes] = equal_runs(graph.nodes[key].num_nodes, num_parts)
    return fill_empty_parts(parts, num_parts)


def _least(found: list[Tensor], graph: TypedGraph, objective: str) -> Tensor:
    """The first of some assignments, unless a later one is better by the objective."""
    if len(found) == 1:
        return found[0]
    if objective == 'volume':
        return min(found, key=lambda parts: _communication_volume(graph, parts))
    cuts = [_edge_cut(graph, parts) for parts in found]
    return found[1] if cuts[1] < _WORTH * cuts[0] else found[0]


def _edge_cut(graph: TypedGraph, parts: Tensor) -> int:
    by_type = graph.by_type(parts)
    return sum(
        int((by_type[relation.src][src] != by_type[relation.dst][dst]).sum())
        for relation in graph.relations.values()
        for _, src, dst in edge_chunks(relation.edge_index)
    )


def _communication_volume(graph: TypedGraph, parts: Tensor) -> int:
    """Rows exchanged per layer: a node's row goes once to every other part, per relation."""
    by_type, volume = graph.by_type(parts), 0
    num_parts = int(parts.max()) + 1
    for relation in graph.relations.values():
        of_src, of_dst = by_type[relation.src], by_type[relation.dst]
        is_read = torch.zeros(of_src.numel(), num_parts, dtype=torch.bool)
        for _, src, dst in edge_chunks(relation.edge_index):
            is_read[src, of_dst[dst]] = True
        is_read[torch.arange(of_src.numel()), of_src] = False
        volume += int(is_read.sum())
    return volume


def _connected(graph: TypedGraph) -> BoolArray:
    """The nodes of types with edges, bool [N]; all nodes if no type has any."""
    used = {end for r in graph.relations.values() if r.edge_index.numel() for end in (r.src, r.dst)}
    sizes = [nodes.num_nodes for nodes in graph.nodes.values()]
    return np.repeat([key in used or not used for key in graph.nodes], sizes)


def _deal(weight: IndexArray, num_parts: int) -> Tensor:
    """Contiguous runs of nodes of about equal weight."""
    middle = np.cumsum(weight) - weight / 2
    parts = (middle * num_parts / max(int(weight.sum()), 1)).astype(np.int64)
    return torch.from_numpy(parts.clip(max=num_parts - 1))
