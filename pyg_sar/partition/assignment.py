"""The part of every node: the options of a method are checked, and the method is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.balance import balance_weights, parse_balance
from pyg_sar.partition.checks import check_positive
from pyg_sar.partition.given import GIVEN, equal_runs, fill_empty_parts
from pyg_sar.partition.mapped import BoolArray, IndexArray, trim
from pyg_sar.partition.method import OBJECTIVES, ORDERS, CutOptions, Method, Problem
from pyg_sar.partition.methods import METHODS
from pyg_sar.partition.neighbours import neighbours
from pyg_sar.partition.rebalance import rebalance, refine
from pyg_sar.partition.row_files import edge_chunks
from pyg_sar.partition.typed import TypedGraph
from pyg_sar.shard.format import NodeKey

_PASSES = 10
"""Of a method that streams; more gain little: 2 to 4 % of the cut from 10 to 20."""

_WORTH = 0.98
"""The second attempt, METIS's k-way, balances less well: it is taken if it cuts less than this
share of the first one's edges."""


def backend_names() -> list[str]:
    """The values that 'backend' may have."""
    return ['auto', *(binding.name for method in METHODS.values() for binding in method.backends)]


def choose(
    asked: CutOptions, *, is_hetero: bool = False, has_train_mask: bool = False
) -> tuple[Method, CutOptions]:
    """Checks options and fills in defaults; returns the method, or a binding of it, and these."""
    name = asked.method if isinstance(asked.method, str) else 'tensor'
    has_parts = isinstance(asked.method, (Tensor, dict)) or name.startswith('file:')
    chosen = GIVEN if has_parts else METHODS.get(name)
    if chosen is None:
        raise ValueError(f"'method' must be one of {list(METHODS)} (got {asked.method!r})")
    backend = asked.backend
    if backend not in backend_names():
        raise ValueError(f"'backend' must be one of {backend_names()} (got {backend!r})")
    bindings = {binding.name: binding for binding in chosen.backends}
    what = f'method={name!r}' + (f', backend={backend!r}' if bindings else '')

    def applies(option: str, can: Callable[[Method], bool]) -> None:
        assert chosen is not None
        if not can(chosen):
            takers = [method.name for method in METHODS.values() if can(method)]
            raise ValueError(f'{option} applies to {takers} alone (got {what})')

    if backend != 'auto':
        applies(f'backend={backend!r}', lambda method: bool(method.backends))
    if bindings:
        chosen = chosen.backends[0] if backend == 'auto' else bindings[str(backend)]
    _check_package(chosen, f"{'method' if chosen.name == name else 'backend'} '{chosen.name}'")
    if asked.objective not in OBJECTIVES:
        raise ValueError(f"'objective' must be one of {list(OBJECTIVES)} (got {asked.objective!r})")
    applies(f'objective={asked.objective!r}', lambda method: asked.objective in method.objectives)
    if asked.passes is not None:
        applies("'passes'", lambda method: method.takes_passes)
        asked = replace(asked, passes=check_positive('passes', asked.passes))
    if asked.threads is not None:
        applies("'threads'", lambda method: method.takes_threads)
        asked = replace(asked, threads=check_positive('threads', asked.threads))

    metis, order = METHODS['metis'], asked.order
    if order is None:
        order = 'cache' if name == metis.name and find_spec(str(metis.package)) else 'source'
    if order not in ORDERS:
        raise ValueError(f"'order' must be one of {list(ORDERS)} (got {order!r})")
    if order == 'cache':
        _check_package(metis, "order='cache'")

    names: tuple[str, ...] = ('types',) if is_hetero and chosen.several else ('nodes',)
    if asked.balance is not None:
        if chosen.cut is None:
            raise ValueError(f"'balance' does not apply to {what} (got {asked.balance!r})")
        names = parse_balance(asked.balance, is_hetero=is_hetero, has_train_mask=has_train_mask)
        if names not in (('nodes',), ('edges',)):
            applies("'balance' beyond one of 'nodes' and 'edges'", lambda method: method.several)
    return chosen, replace(
        asked,
        backend=chosen.name if bindings else None,
        objective=asked.objective if chosen.cut is not None else None,
        balance=names if chosen.cut is not None else None,
        passes=int(asked.passes or _PASSES) if chosen.takes_passes else None,
        threads=int(asked.threads or 1) if chosen.takes_threads else None,
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
    graph: TypedGraph, num_parts: int, method: Method, options: CutOptions
) -> dict[NodeKey, Tensor]:
    """The part of every node, int32 [N], by type.

    A partitioner sees the nodes of all types in one graph, undirected. A type without edges is
    dealt out evenly. Raises ValueError if the parts given are not N integers in [0, P).
    """
    if method.assign is not None:
        parts = method.assign(graph, num_parts, options)
    elif num_parts == 1:
        parts = torch.zeros(graph.num_nodes, dtype=torch.int64)
    else:
        parts = _cut(graph, num_parts, method, options)
    trim()  # Else METIS's memory would stay while shards are written.
    return graph.by_type(parts.to(torch.int32))


def _cut(graph: TypedGraph, num_parts: int, method: Method, options: CutOptions) -> Tensor:
    """Parts by a method that reads edges, of the types one after another, int64 [N]."""
    assert method.cut is not None
    connected = _connected(graph)
    balance = balance_weights(graph, options.balance or (), connected)
    edge_index = graph.homogeneous_edge_index()
    keep = method.keeps_duplicates
    # METIS takes 64 bits, and what keeps duplicates has more to read.
    dtype = np.int32 if keep and graph.num_nodes < 2**31 else np.int64
    near = neighbours(edge_index, graph.num_nodes, graph.scratch, keep_duplicates=keep)
    indptr, index = near.csr(dtype=dtype)
    del near
    problem = Problem(indptr, index, balance, num_parts, options, graph.scratch.folder)
    # Without edges there is nothing to cut.
    attempts = method.cut(problem) if index.size else [_deal(balance.weights.sum(1), num_parts)]
    # No part above its caps, then as few cut edges as single moves within them can reach.
    even = [rebalance(problem, parts.numpy()) for parts in attempts]
    if keep or not balance.is_single:
        even = [refine(problem, parts) for parts in even]
    attempts = [torch.from_numpy(parts) for parts in even]
    parts = _least(attempts, graph, options.objective)
    for key, start in graph.offsets.items():
        nodes = slice(start, start + graph.nodes[key].num_nodes)
        if graph.is_hetero and not connected[nodes].any():
            parts[nodes] = equal_runs(graph.nodes[key].num_nodes, num_parts)
    return fill_empty_parts(parts, num_parts)


def _least(attempts: list[Tensor], graph: TypedGraph, objective: str | None) -> Tensor:
    """The first of some assignments, unless a later one is better by the objective."""
    if len(attempts) == 1:
        return attempts[0]
    if objective == 'volume':
        return min(attempts, key=lambda parts: _communication_volume(graph, parts))
    cuts = [_edge_cut(graph, parts) for parts in attempts]
    return attempts[1] if cuts[1] < _WORTH * cuts[0] else attempts[0]


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
