"""The last step of a method with several constraints: single nodes move to where they fit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.methods.balance import Balance, batch_size, has_room
from pyg_sar.partitioner.on_disk.csr import neighbours_by_part
from pyg_sar.partitioner.on_disk.mapped import FloatArray, IndexArray, Int64Array

_ROUNDS = 3


def even_out(
    indptr: IndexArray, index: IndexArray, parts: Tensor, balance: Balance, num_parts: int
) -> Tensor:
    """No part above its caps, then as few cut edges as single moves within them can reach."""
    moved = rebalance(indptr, index, parts.numpy(), balance, num_parts)
    return torch.from_numpy(refine(indptr, index, moved, balance, num_parts))


def rebalance(
    indptr: IndexArray, index: IndexArray, parts: Int64Array, balance: Balance, num_parts: int
) -> Int64Array:
    """Moves nodes until no part exceeds the caps of `balance`, where that can be.

    METIS with several constraints leaves rare types uneven. Of the nodes of an overfull part those
    go first that lose the fewest neighbours for what they weigh; a part takes a node only if it
    stays within all its caps.

    Args:
        indptr: int64 [N + 1], the neighbours of node v are ``index[indptr[v]:indptr[v + 1]]``.
        index: int32 or int64, the neighbours, both ways.
        parts: int64 [N], the part of every node.
        balance: What the parts shall share evenly.
        num_parts: Number of parts P.

    Returns:
        The part of every node, int64 [N]; `parts` itself if nothing had to move.
    """
    weights, caps = balance.weights, balance.caps(num_parts)
    loads = _loads(parts, weights, num_parts)
    if (loads <= caps).all():
        return parts
    parts = parts.copy()
    # The rarest first: what few nodes weigh in has the least choice.
    for constraint in np.argsort((weights > 0).sum(axis=0), kind='stable'):
        while _move(indptr, index, parts, weights, loads, caps, int(constraint)):
            pass
    return parts


def refine(
    indptr: IndexArray, index: IndexArray, parts: Int64Array, balance: Balance, num_parts: int
) -> Int64Array:
    """Moves nodes to the part of most of their neighbours, as long as it stays within its caps.

    What :func:`rebalance` has moved, its neighbours may follow: where 60 venues had to move, the
    cut fell below what it had been before.

    Args:
        indptr: As in :func:`rebalance`, as for the others.
        index: The neighbours.
        parts: int64 [N], the part of every node.
        balance: What the parts shall share evenly.
        num_parts: Number of parts P.

    Returns:
        The part of every node, int64 [N].
    """
    parts = parts.copy()
    weights, caps = balance.weights, balance.caps(num_parts)
    loads = _loads(parts, weights, num_parts)
    size = batch_size(len(parts), num_parts)
    for _ in range(_ROUNDS):
        moved = False
        for start in range(0, len(parts), size):
            nodes = slice(start, start + size)
            near = neighbours_by_part(indptr, index, parts, nodes, num_parts)
            score = np.where(has_room(weights[nodes], loads, caps), near, -1.0)
            target = score.argmax(axis=1)
            rows = np.arange(len(near))
            gain = score[rows, target] - near[rows, parts[nodes]]
            for row in np.flatnonzero(gain > 0):
                moved |= _try_move(parts, start + row, target[row], weights, loads, caps)
        if not moved:
            break
    return parts


def _move(
    indptr: IndexArray,
    index: IndexArray,
    parts: Int64Array,
    weights: Int64Array,
    loads: FloatArray,
    caps: FloatArray,
    constraint: int,
) -> bool:
    """One round: every node's best move, the cheapest first; whether any node moved."""
    too_full = loads[:, constraint] > caps[constraint]
    nodes = np.flatnonzero(too_full[parts] & (weights[:, constraint] > 0))
    if nodes.size == 0:
        return False
    near = neighbours_by_part(indptr, index, parts, nodes, len(loads))
    room = has_room(weights[nodes], loads, caps)
    score = np.where(room, near, -np.inf)
    target = score.argmax(axis=1)
    rows = np.arange(len(nodes))
    loss = (near[rows, parts[nodes]] - score[rows, target]) / weights[nodes, constraint]
    moved = False
    for row in np.argsort(loss, kind='stable'):
        if not room[row, target[row]]:
            break  # Sorted last: no part has room for these.
        if loads[parts[nodes[row]], constraint] > caps[constraint]:
            moved |= _try_move(parts, nodes[row], target[row], weights, loads, caps)
    return moved


def _try_move(
    parts: Int64Array,
    node: int,
    target: int,
    weights: Int64Array,
    loads: FloatArray,
    caps: FloatArray,
) -> bool:
    """Moves a node unless others have filled its target since it was chosen."""
    weight = weights[node]
    if not ((loads[target] + weight <= caps) | (weight == 0)).all():
        return False
    loads[parts[node]] -= weight
    loads[target] += weight
    parts[node] = target
    return True


def _loads(parts: Int64Array, weights: Int64Array, num_parts: int) -> FloatArray:
    return np.stack([np.bincount(parts, w, num_parts) for w in weights.T], axis=1)
