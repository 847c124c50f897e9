"""Neighbour sampling in plain Python: the same draws, one number at a time.

Slow and without tensors, from the definitions: SplitMix64 on Python's integers, Floyd's algorithm
on sets, nodes in dicts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = 2**64 - 1


def _mixed(state: int) -> int:
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return state ^ state >> 31


def hashed_on(state: int, *keys: int) -> int:
    for key in keys:
        state = _mixed((state + (key + 1) * 0x9E3779B97F4A7C15) & _MASK)
    return state


def hashed(seed: int, *keys: int) -> int:
    return hashed_on(_mixed(seed & _MASK), *keys)


def floyd(state: int, num: int, k: int) -> list[int]:
    chosen: list[int] = []
    for slot, j in enumerate(range(num - k, num)):
        t = hashed_on(state, slot) * (j + 1) >> 64
        chosen.append(j if t in chosen else t)
    return chosen


class Sampled:
    """A rank's batch: nodes and edges (source, destination, id) by hop, ids of the graph."""

    def __init__(self) -> None:
        self.nodes: list[list[int]] = []
        self.edges: list[list[tuple[int, int, int]]] = []


def sample(
    edge_index: Tensor,
    parts: Tensor,
    seeds: Sequence[int],
    fans: Sequence[int],
    *,
    batch: int,
    seed: int = 0,
    epoch: int = 0,
    replace: bool = False,
) -> Sampled:
    """A rank's seeds in batch `batch` with their neighbours, of a homogeneous graph."""
    in_edges: dict[int, list[tuple[int, int]]] = {}
    for number, (src, dst) in enumerate(edge_index.t().tolist()):
        in_edges.setdefault(dst, []).append((number, src))
    order = torch.argsort(parts, stable=True)
    position = torch.empty_like(order)
    position[order] = torch.arange(order.numel())
    out, known = Sampled(), set(seeds)
    out.nodes.append(list(seeds))
    for hop, k in enumerate(fans):
        edges = []
        for node in out.nodes[-1]:
            found = in_edges.get(node, [])
            number = hashed(hashed(seed, epoch, 0), 0, batch)
            state = hashed_on(number, node * len(fans) + hop)
            if k < 0 or (len(found) <= k and not replace):
                chosen = range(len(found))
            elif replace:
                slots = range(k if found else 0)
                chosen = [hashed_on(state, slot) * len(found) >> 64 for slot in slots]
            else:
                chosen = floyd(state, len(found), k)
            edges += [(found[i][1], node, found[i][0]) for i in chosen]
        new = {src for src, _, _ in edges} - known
        known |= new
        out.nodes.append(sorted(new, key=lambda node: int(position[node])))
        out.edges.append(edges)
    return out
