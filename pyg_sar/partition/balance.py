"""What the parts of a graph shall share evenly: one weight for every node."""

from __future__ import annotations

import math

import numpy as np
import torch

from pyg_sar.partition.graph import TypedGraph
from pyg_sar.partition.memmap import BoolArray, Int64Array, count_into, edge_chunks

BALANCES = ('nodes', 'edges')

TOLERANCE = 1.05
"""The load of the largest part over that of the mean part that a method may leave."""


def largest_load(mean: float) -> float:
    """The most a part may hold: 5 % more than the mean; of few nodes the mean rounded up."""
    return max(math.ceil(mean), math.floor(TOLERANCE * mean), 1)


def node_weights(
    graph: TypedGraph, balance: str, connected: BoolArray, num_parts: int
) -> Int64Array | None:
    """What every node weighs, int64 [N]: one, with ``'edges'`` plus its in-edges; None if all one.

    Nodes that are not `connected`, bool [N], weigh nothing. A node that weighs more than a part,
    such as a hub, weighs a part: it lies alone, and the others share the other parts evenly.
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
