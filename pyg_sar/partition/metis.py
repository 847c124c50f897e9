"""METIS and KaMinPar: few edges between parts; within one an order in which gathers hit the cache.

METIS is pymetis, or else pyg-lib or torch-sparse, which always bisect and take no seed.
Recursive bisection balances to 0.1 % where k-way leaves 3 %. On power-law graphs it cuts 2 to 7 %
less from 16 parts on; on WordNet with words up to 3 % more, and on a grid 12 %. So pymetis does
both, and k-way is taken if it cuts over 2 % less.

For the order METIS bisects the edges within a part until pieces have at most 2,048 nodes, and
numbers them so that pieces of one half are next to each other: neighbours are near at every scale
of caches. 2,048 rows of 128 floats are 1 MiB, as much as L2 of most cores holds or half of it;
smaller pieces take longer and gain nothing. One round of METIS's refinement cuts as few edges here
as ten, in two thirds of the time. Other orders: docs/speed.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.external_sort import neighbours
from pyg_sar.partition.graph import TypedGraph
from pyg_sar.partition.layout import group_nodes
from pyg_sar.partition.memmap import Int64Array, edge_chunks, join_edges
from pyg_sar.partition.options import CutOptions, Problem, metis_package
from pyg_sar.shard.format import NodeKey

_SEED = 4321
"""METIS's own default: seed 0 gives what METIS gives when nobody asks for a seed."""

_WORTH = 0.98
"""K-way balances less well: it is taken if it cuts less than this share of bisection's edges."""


def metis_parts(problem: Problem) -> Tensor:
    """The part of every node, int64 [N]. Parts may be empty on graphs of a few nodes per part."""
    linked = _linked(problem)
    if linked is not None:
        nodes, among = linked
        parts = np.arange(len(nodes)) if len(nodes) < problem.num_parts else metis_parts(among)
        return _dealt(problem, nodes, np.asarray(parts))
    package = metis_package()
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


def _linked(problem: Problem) -> tuple[Int64Array, Problem] | None:
    """The nodes with an edge, and the graph of them; None if most have one.

    METIS takes minutes where most have none, as of ids with gaps.
    """
    indptr, weights = problem.indptr, problem.weights
    is_linked = np.diff(indptr) > 0
    nodes = np.flatnonzero(is_linked)
    if 2 * len(nodes) >= problem.num_nodes:
        return None
    index = (np.cumsum(is_linked) - 1)[problem.index]
    among = replace(
        problem,
        indptr=np.append(indptr[nodes], indptr[-1]),
        index=index,
        weights=None if weights is None else weights[nodes],
    )
    return nodes, among


def _dealt(problem: Problem, nodes: Int64Array, parts: Int64Array) -> Tensor:
    """The part of every node: those of `nodes`, and others in runs that even the loads out."""
    is_other = np.ones(problem.num_nodes, bool) if problem.weights is None else problem.weights > 0
    is_other[nodes] = False  # each of the others weighs one
    others, found = np.flatnonzero(is_other), np.zeros(problem.num_nodes, np.int64)
    found[nodes] = parts
    weights = None if problem.weights is None else problem.weights[nodes]
    loads = np.bincount(parts, weights, problem.num_parts)
    filled = np.sort(loads)
    levels = (np.cumsum(filled) + len(others)) / np.arange(1, problem.num_parts + 1)
    room = np.maximum(levels[levels >= filled][-1] - loads, 0)
    found[others] = np.searchsorted(np.cumsum(room), np.arange(len(others)) + 0.5).clip(
        max=problem.num_parts - 1
    )
    return torch.from_numpy(found)


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
    with _told():
        found, parts = pymetis.part_graph(
            problem.num_parts,
            pymetis.CSRAdjacency(problem.indptr, problem.index),
            vweights=problem.weights,
            options=pymetis.Options(seed=_SEED + problem.options.seed, **more),
            recursive=recursive,
        )
    return found, torch.from_numpy(np.array(parts, dtype=np.int64))


@contextmanager
def _told() -> Iterator[None]:
    """Errors of METIS, which may name no cause, and of packages that were built without it."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(
            f'expected METIS to cut the graph (got: {error}): take --method kaminpar or ldg'
        ) from error


@_told()
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


_IMBALANCE = 0.03
"""By how much the largest part may exceed the mean; the default of KaMinPar and METIS's k-way."""


def kaminpar_parts(problem: Problem) -> Tensor:
    """The part of every node, int64 [N], by KaMinPar; several threads give other parts every time.

    Gottesbueren, Heuer, Sanders, Schulz and Seemaier, Deep multilevel graph partitioning, ESA 2021.
    """
    kaminpar = import_module('kaminpar')
    # The package reads graphs from files alone. This one has no name: nothing is left of it.
    # It is ParHiP's: a header, the place of every node's neighbours, these, weights. Bits of the
    # first number: no weights of edges, no weights of nodes.
    weights = problem.weights
    header = [3 if weights is None else 1, problem.num_nodes, len(problem.index)]
    places = 8 * (problem.indptr + len(header) + problem.num_nodes + 1)
    numbers = [np.array(header), places, problem.index]
    if weights is not None:
        numbers.append(np.maximum(weights, 1))  # which takes no zeros
    with tempfile.TemporaryFile(dir=problem.folder) as file:
        for array in numbers:
            array.astype(np.int64, copy=False).tofile(file)
        file.flush()
        path = f'/proc/self/fd/{file.fileno()}'
        graph = kaminpar.load_graph(path, kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(problem.options.seed)
    partitioner = kaminpar.KaMinPar(1, kaminpar.default_context())
    return torch.tensor(partitioner.compute_partition(graph, problem.num_parts, _IMBALANCE))


ROWS = 2048
"""Nodes of a sub-part, at most about."""


def find_sub_parts(
    graph: TypedGraph, assignment: dict[NodeKey, Tensor], num_parts: int, seed: int
) -> dict[NodeKey, Tensor]:
    """The sub-part of every node, int32 [N], by type; those of a part follow one another.

    Parts that are no larger than a sub-part stay whole; where all are, it gives `assignment`.
    """
    parts = torch.cat(list(assignment.values()))
    groups = group_nodes(parts, num_parts)
    if int(groups.partptr.diff().max()) <= ROWS:
        return assignment
    options = CutOptions(seed=seed)
    sub_parts, first = torch.empty_like(parts), 0
    near = neighbours(_inner_edges(graph, parts, groups.place), parts.numel(), graph.scratch)
    for part, (start, stop) in enumerate(pairwise(groups.partptr.tolist())):
        indptr, index = near.csr(start, stop)
        nodes = groups.n_id(part)
        count = max(-(-nodes.numel() // ROWS), 1)
        sub_parts[nodes] = first
        if count > 1 and index.size:
            problem = Problem(indptr, index, None, count, options)
            linked = _linked(problem)
            if linked is not None:
                sub_parts[nodes] += count - 1  # the others come last
                nodes = nodes[torch.from_numpy(linked[0])]
                problem = replace(linked[1], num_parts=-(-nodes.numel() // ROWS))
            _, found = pymetis_parts(problem, recursive=True, rounds=1)
            sub_parts[nodes] = first + found.to(torch.int32)
            del problem, linked
        first += count
        del indptr, index, nodes  # freed before the next part allocates
    return graph.by_type(sub_parts)


def _inner_edges(graph: TypedGraph, parts: Tensor, place: Tensor) -> Tensor:
    """The edges within parts, by the places of their ends; int64 [2, E'] in scratch space."""
    edge_index = graph.homogeneous_edge_index()

    def inner() -> Iterator[tuple[Tensor, Tensor]]:
        for _, src, dst in edge_chunks(edge_index):
            is_inner = parts[src] == parts[dst]
            yield place[src[is_inner]], place[dst[is_inner]]

    return join_edges(inner(), edge_index.size(1), graph.scratch)
