"""Streaming partitioners: one pass over the nodes, for graphs beyond METIS's memory.

Every node goes to the part that holds many of its neighbours and is not full. Beside the graph this
needs one part id per node and the loads of the parts (14 bytes per edge in all, on 40 M edges).
Nodes are decided in batches of a hundredth of a part. Later passes see where all neighbours went in
the one before. Ten of them close most of the distance to METIS on power-law graphs, less of it on
sparse ones, where METIS finds a cut of a few percent.

- Linear deterministic greedy: Stanton and Kliot, Streaming graph partitioning for large distributed
  graphs, KDD 2012.
- Fennel: Tsourakakis, Gkantsidis, Radunovic and Vojnovic, FENNEL: streaming graph partitioning for
  massive scale graphs, WSDM 2014.
- More than one pass: Nishimura and Ugander, Restreaming graph partitioning, KDD 2013.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.balance import LARGEST_BATCH, batch_size, has_room
from pyg_sar.partition.mapped import BoolArray, FloatArray, IndexArray, Int64Array
from pyg_sar.partition.method import Method, Problem
from pyg_sar.partition.neighbours import neighbours_by_part

_LOCAL = 0.9
"""Runs of ids that cut less than this share of what random parts cut say something."""

_GAMMA = 1.5
"""Fennel's exponent; its authors' choice."""


def stream_assignment(problem: Problem, method: str) -> Tensor:
    """Assigns nodes to parts in the order of their ids, a batch at a time.

    A batch sees the parts as they were before it. Where near ids are neighbours (a crawl, a sorted
    vocabulary), which a pass over the edges tells, the first pass takes equal runs of ids for the
    parts of nodes it has not come to; else it knows nothing of them. No part exceeds its caps,
    unless a single node weighs more than what is left anywhere. The seed is that of the order in
    which equally good parts are filled. `method` is ``'ldg'`` or ``'fennel'``.
    """
    indptr, index, num_parts = problem.indptr, problem.index, problem.num_parts
    caps, options = problem.caps, problem.options
    assert options.passes is not None
    num_nodes = len(indptr) - 1
    parts = _start(indptr, index, num_parts)
    # Between equally good parts: one seeded order, smaller than any difference in neighbours.
    order = np.random.default_rng(options.seed).permutation(num_parts) * (1e-9 / num_parts)
    alpha = np.sqrt(num_parts) * (len(index) / 2) / max(num_nodes, 1) ** _GAMMA
    slope = alpha * _GAMMA * np.sqrt(num_nodes / num_parts)
    size = batch_size(num_nodes, num_parts)
    for _ in range(options.passes):
        # As in restreaming: the parts fill up anew, the neighbours' parts are the latest known.
        loads = np.zeros((num_parts, len(caps)))
        for start in range(0, num_nodes, size):
            nodes = slice(start, min(start + size, num_nodes))
            weights = problem.balance.weights[nodes]
            near = neighbours_by_part(indptr, index, parts, nodes, num_parts)
            fill = _fill(weights, loads / caps)
            score = near * (1 - fill) if method == 'ldg' else near - slope * np.sqrt(fill)
            score -= 1e-6 * fill + order
            parts[nodes] = _choose(score, weights, loads, caps)
    return torch.from_numpy(parts)


def _start(indptr: IndexArray, index: IndexArray, num_parts: int) -> Int64Array:
    """Equal runs of ids if they cut clearly less than random parts would, else no parts: -1."""
    num_nodes = len(indptr) - 1
    runs = np.arange(num_nodes) * num_parts // max(num_nodes, 1)
    own = 0
    for start in range(0, num_nodes, LARGEST_BATCH):
        nodes = slice(start, start + LARGEST_BATCH)
        near = neighbours_by_part(indptr, index, runs, nodes, num_parts)
        own += int(near[np.arange(len(near)), runs[nodes]].sum())
    at_random = 1 - 1 / num_parts
    if len(index) - own < _LOCAL * at_random * len(index):
        return runs
    return np.full(num_nodes, -1, dtype=np.int64)


def _fill(weights: Int64Array, fill: FloatArray) -> FloatArray:
    """How full every part is for every node [B, P]: by the fullest of what the node weighs in."""
    if fill.shape[1] == 1:
        return np.broadcast_to(fill[:, 0], (len(weights), len(fill)))
    result = np.zeros((len(weights), len(fill)))
    for constraint in range(fill.shape[1]):
        counts = weights[:, constraint] > 0
        result[counts] = np.maximum(result[counts], fill[:, constraint])
    return result


def _choose(
    score: FloatArray, weights: Int64Array, loads: FloatArray, caps: FloatArray
) -> Int64Array:
    """The best part with room for every node of a batch; adds the nodes to `loads`."""
    chosen = np.empty(len(score), dtype=np.int64)
    waiting = np.arange(len(score))
    while waiting.size:
        room = has_room(weights[waiting], loads, caps)
        # Where no part has room, the least full one takes the node.
        none: BoolArray = np.asarray(~room.any(axis=1))
        best = np.where(room, score[waiting], -np.inf).argmax(axis=1)
        if none.any():
            best[none] = _fill(weights[waiting[none]], loads / caps).argmin(axis=1)
        fits = none | _fits(best, weights[waiting], loads, caps)
        chosen[waiting[fits]] = best[fits]
        np.add.at(loads, best[fits], weights[waiting[fits]])
        waiting = waiting[~fits]
    return chosen


def _fits(best: Int64Array, weights: Int64Array, loads: FloatArray, caps: FloatArray) -> BoolArray:
    """Which nodes of a batch still fit when those before them are in their parts."""
    order = np.argsort(best, kind='stable')
    part = best[order]
    total = np.cumsum(weights[order], axis=0)
    first = np.searchsorted(part, part)
    before = np.where(first[:, None] > 0, total[np.maximum(first - 1, 0)], 0)
    inside = np.all((loads[part] + total - before <= caps) | (weights[order] == 0), axis=1)
    fits = np.empty(len(best), dtype=bool)
    fits[order] = inside
    return fits


LDG, FENNEL = (
    Method(
        name,
        lambda problem, name=name: [stream_assignment(problem, name)],  # type: ignore[misc]
        keeps_duplicates=True,
        several=True,
        takes_passes=True,
    )
    for name in ('ldg', 'fennel')
)
