"""Linear deterministic greedy: passes over the nodes, for graphs beyond METIS's memory.

Every node goes to the part that holds many of its neighbours and is not full. Beside the graph this
needs one part id per node and the loads of the parts (14 bytes per edge in all, on 40 M edges).
Later passes see where all neighbours went in the one before. Ten of them close most of the distance
to METIS on power-law graphs, less of it on sparse ones, where METIS cuts a few percent.

- Stanton and Kliot, Streaming graph partitioning for large distributed graphs, KDD 2012.
- More than one pass: Nishimura and Ugander, Restreaming graph partitioning, KDD 2013.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.external_sort import neighbours_by_part
from pyg_sar.partition.memmap import BoolArray, FloatArray, IndexArray, Int64Array
from pyg_sar.partition.options import Problem

PASSES = 10
"""More gain little: 2 to 4 % of the cut from 10 to 20."""

_LOCAL = 0.9
"""Ids carry locality if runs of them cut less than this share of what random parts cut."""

_BATCHES_PER_PART = 100
"""A batch is this share of a part, so that a part cannot fill up unseen within one."""

_LARGEST_BATCH = 4096
"""Nodes decided upon at a time, at most."""


def ldg_parts(problem: Problem) -> Tensor:
    """Assigns nodes to parts in the order of their ids, a batch at a time.

    A batch sees the parts as they were before it. Where near ids are neighbours (a crawl, a sorted
    vocabulary), the first pass takes equal runs of ids for the parts of nodes it has not come to.
    No part exceeds the cap, unless a single node weighs more than what is left anywhere.
    """
    indptr, index, num_parts, cap = problem.indptr, problem.index, problem.num_parts, problem.cap
    num_nodes, weights = problem.num_nodes, problem.weights
    if weights is None:
        weights = np.broadcast_to(np.int64(1), num_nodes)  # one number, not N
    parts = _start(indptr, index, num_parts)
    # Between equally good parts: one seeded order, smaller than any difference in neighbours.
    rng = np.random.default_rng(problem.options.seed)
    order = rng.permutation(num_parts) * (1e-9 / num_parts)
    size = batch_size(num_nodes, num_parts)
    for _ in range(PASSES):
        # As in restreaming: the parts fill up anew, the neighbours' parts are the latest known.
        loads = np.zeros(num_parts)
        for start in range(0, num_nodes, size):
            nodes = slice(start, min(start + size, num_nodes))
            fill = loads / cap
            near = neighbours_by_part(indptr, index, parts, nodes, num_parts)
            score = near * (1 - fill) - (1e-6 * fill + order)
            parts[nodes] = _choose(score, weights[nodes], loads, cap)
    return torch.from_numpy(parts)


def batch_size(num_nodes: int, num_parts: int) -> int:
    """Nodes decided upon at a time, a hundredth of a part."""
    return max(1, min(_LARGEST_BATCH, num_nodes // (_BATCHES_PER_PART * num_parts)))


def _start(indptr: IndexArray, index: IndexArray, num_parts: int) -> Int64Array:
    """Equal runs of ids if they cut clearly less than random parts would, else no parts: -1."""
    num_nodes = len(indptr) - 1
    runs = np.arange(num_nodes) * num_parts // max(num_nodes, 1)
    own = 0
    for start in range(0, num_nodes, _LARGEST_BATCH):
        nodes = slice(start, start + _LARGEST_BATCH)
        near = neighbours_by_part(indptr, index, runs, nodes, num_parts)
        own += int(near[np.arange(len(near)), runs[nodes]].sum())
    at_random = 1 - 1 / num_parts
    if len(index) - own < _LOCAL * at_random * len(index):
        return runs
    return np.full(num_nodes, -1, dtype=np.int64)


def _choose(score: FloatArray, weights: Int64Array, loads: FloatArray, cap: float) -> Int64Array:
    """The best part with room for every node of a batch; adds the nodes to `loads`."""
    chosen = np.empty(len(score), dtype=np.int64)
    waiting = np.arange(len(score))
    while waiting.size:
        weight = weights[waiting, None]
        room = (loads + weight <= cap) | (weight == 0)
        # Where no part has room, the least full one takes the node.
        none: BoolArray = np.asarray(~room.any(axis=1))
        best = np.where(room, score[waiting], -np.inf).argmax(axis=1)
        best[none] = loads.argmin()
        fits = none | _fits(best, weights[waiting], loads, cap)
        chosen[waiting[fits]] = best[fits]
        np.add.at(loads, best[fits], weights[waiting[fits]])
        waiting = waiting[~fits]
    return chosen


def _fits(best: Int64Array, weights: Int64Array, loads: FloatArray, cap: float) -> BoolArray:
    """Which nodes of a batch still fit when those before them are in their parts."""
    order = np.argsort(best, kind='stable')
    part = best[order]
    total = np.cumsum(weights[order])
    first = np.searchsorted(part, part)
    before = np.where(first > 0, total[np.maximum(first - 1, 0)], 0)
    fits = np.empty(len(best), dtype=bool)
    fits[order] = (loads[part] + total - before <= cap) | (weights[order] == 0)
    return fits
