"""The last step of a method with several constraints: single nodes move to where they fit.

METIS gets all nodes and the types with at least 5 % of them as constraints. Rare types are evened
out here, at the least loss: as constraints of METIS they cost more of the cut.
"""

from __future__ import annotations

import numpy as np

from pyg_sar.partition.balance import batch_size, has_room
from pyg_sar.partition.mapped import FloatArray, Int64Array
from pyg_sar.partition.method import Problem
from pyg_sar.partition.neighbours import neighbours_by_part

_ROUNDS = 3

_MOST_CELLS = 1 << 20
"""Pairs of a node and a part that are looked at together, at most about."""


def rebalance(problem: Problem, parts: Int64Array) -> Int64Array:
    """Moves nodes until no part exceeds its caps, where that can be.

    METIS with several constraints leaves rare types uneven. Of the nodes of an overfull part those
    go first that lose the fewest neighbours for what they weigh; a part takes a node only if it
    stays within all its caps. Gives `parts` itself, int64 [N], if nothing had to move.
    """
    weights, caps = problem.balance.weights, problem.caps
    loads = _loads(parts, weights, problem.num_parts)
    if (loads <= caps).all():
        return parts
    parts = parts.copy()
    # The rarest first: what few nodes weigh in has the least choice.
    for constraint in np.argsort((weights > 0).sum(axis=0), kind='stable'):
        while _move(problem, parts, loads, int(constraint)):
            pass
    return parts


def refine(problem: Problem, parts: Int64Array) -> Int64Array:
    """Moves nodes to the part of most of their neighbours, as long as it stays within its caps.

    What :func:`rebalance` has moved, its neighbours may follow: where 60 venues had to move, the
    cut fell below what it had been before.
    """
    parts = parts.copy()
    loads = _loads(parts, problem.balance.weights, problem.num_parts)
    size = batch_size(len(parts), problem.num_parts)
    for _ in range(_ROUNDS):
        moved = False
        for start in range(0, len(parts), size):
            nodes = slice(start, start + size)
            target, gain = _best_moves(problem, parts, nodes, loads)
            for row in np.flatnonzero(gain > 0):
                moved |= _try_move(problem, parts, start + row, target[row], loads)
        if not moved:
            break
    return parts


def _move(problem: Problem, parts: Int64Array, loads: FloatArray, constraint: int) -> bool:
    """One round: every node's best move, the cheapest first; whether any node moved."""
    weights, caps = problem.balance.weights, problem.caps
    too_full = loads[:, constraint] > caps[constraint]
    nodes = np.flatnonzero(too_full[parts] & (weights[:, constraint] > 0))
    if nodes.size == 0:
        return False
    pieces = np.array_split(nodes, -(-nodes.size * len(loads) // _MOST_CELLS))
    moves = [_best_moves(problem, parts, piece, loads) for piece in pieces]
    target, gain = map(np.concatenate, zip(*moves, strict=True))
    moved = False
    for row in np.argsort(-gain / weights[nodes, constraint], kind='stable'):
        if np.isneginf(gain[row]):
            break  # Sorted last: no part has room for these.
        if loads[parts[nodes[row]], constraint] > caps[constraint]:
            moved |= _try_move(problem, parts, nodes[row], target[row], loads)
    return moved


def _best_moves(
    problem: Problem, parts: Int64Array, nodes: slice | Int64Array, loads: FloatArray
) -> tuple[Int64Array, FloatArray]:
    """The part with room where a node has most neighbours, and how many more than in its own.

    It is minus infinity where no part has room.
    """
    near = neighbours_by_part(problem.indptr, problem.index, parts, nodes, len(loads))
    room = has_room(problem.balance.weights[nodes], loads, problem.caps)
    score = np.where(room, near, -np.inf)
    target = score.argmax(axis=1)
    rows = np.arange(len(near))
    return target, score[rows, target] - near[rows, parts[nodes]]


def _try_move(
    problem: Problem, parts: Int64Array, node: int, target: int, loads: FloatArray
) -> bool:
    """Moves a node unless others have filled its target since it was chosen."""
    weights, caps = problem.balance.weights, problem.caps
    weight = weights[node]
    if not ((loads[target] + weight <= caps) | (weight == 0)).all():
        return False
    loads[parts[node]] -= weight
    loads[target] += weight
    parts[node] = target
    return True


def _loads(parts: Int64Array, weights: Int64Array, num_parts: int) -> FloatArray:
    return np.stack([np.bincount(parts, w, num_parts) for w in weights.T], axis=1)
