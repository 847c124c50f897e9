"""The order of the nodes of a part: neighbours near each other, so that gathers hit the cache.

METIS bisects the edges within a part until pieces have at most 2,048 nodes, and numbers them so
that pieces of one half are next to each other. So neighbours are near at every scale of caches, and
the piece only has to be small enough: 2,048 rows of 128 floats are 1 MiB, as much as L2 of most
cores holds or half of it. Smaller pieces take METIS longer and gain nothing. One round of METIS's
refinement cuts as few edges here as ten, in two thirds of the time. Other orders: docs/speed.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from pyg_sar.partition.groups import group_nodes
from pyg_sar.partition.mapped import trim
from pyg_sar.partition.method import CutOptions, Problem
from pyg_sar.partition.metis import pymetis_parts
from pyg_sar.partition.neighbours import neighbours
from pyg_sar.partition.row_files import edge_chunks, join_edges
from pyg_sar.partition.typed import TypedGraph
from pyg_sar.shard.format import NodeKey

ROWS = 2048
"""Nodes of a sub-part, at most about."""


def find_sub_parts(
    graph: TypedGraph, assignment: dict[NodeKey, Tensor], num_parts: int, seed: int
) -> dict[NodeKey, Tensor]:
    """The sub-part of every node, int32 [N], by type; those of a part follow one another.

    METIS sees the nodes of all types in one graph, undirected, one part at a time. Parts that are
    no larger than a sub-part stay whole; where all are, it gives `assignment` itself.
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
            _, found = pymetis_parts(problem, recursive=True, rounds=1)
            sub_parts[nodes] += found.to(torch.int32)
            del problem
        first += count
        del indptr, index, nodes  # freed before the next part allocates
        trim()
    return graph.by_type(sub_parts)


def _inner_edges(graph: TypedGraph, parts: Tensor, place: Tensor) -> Tensor:
    """The edges within parts, by the places of their ends; int64 [2, E'] in scratch space."""
    edge_index = graph.homogeneous_edge_index()

    def inner() -> Iterator[tuple[Tensor, Tensor]]:
        for _, src, dst in edge_chunks(edge_index):
            is_inner = parts[src] == parts[dst]
            yield place[src[is_inner]], place[dst[is_inner]]

    return join_edges(inner(), edge_index.size(1), graph.scratch)
