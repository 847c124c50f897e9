"""What the parts of a graph shall share evenly.

The types of a heterogeneous graph are balanced by default, as every relation waits for its fullest
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.mapped import BoolArray, FloatArray, Int64Array
from pyg_sar.partition.row_files import count_into, edge_chunks
from pyg_sar.partition.typed import NodeSet, TypedGraph

BALANCES = ('nodes', 'edges', 'train', 'types')

TOLERANCE = 1.05
"""The load of the largest part over that of the mean part that a method may leave."""

RARE = 0.05
"""A type with a smaller share of the nodes is no constraint of METIS, but of the last step; see
:mod:`pyg_sar.partition.rebalance`."""

_BATCHES_PER_PART = 100
"""A batch is this share of a part, so that a part cannot fill up unseen within one."""

LARGEST_BATCH = 4096
"""Nodes decided upon at a time, at most."""


@dataclass(frozen=True)
class Balance:
    """Weights of the nodes, of which every part shall get an equal share.

    Shapes:
        - **weights** int64 [N, C]: what every node weighs in each of C constraints, >= 0
        - **for_metis** int64 [N, C']: the weights that METIS is given in their place
    """

    weights: Int64Array
    for_metis: Int64Array

    @property
    def is_equal(self) -> bool:
        """Whether every node weighs the same."""
        return self.is_single and self.weights.strides[0] == 0

    @property
    def is_single(self) -> bool:
        """Whether it is one weight only."""
        return bool(self.weights.shape[1] == 1)

    def caps(self, num_parts: int) -> FloatArray:
        """The most a part may hold of each constraint, [C]: 5 % more than the mean.

        Of few nodes a part may hold the mean rounded up.
        """
        mean = self.weights.sum(axis=0) / num_parts
        return np.maximum(np.maximum(np.ceil(mean), np.floor(TOLERANCE * mean)), 1.0)


def parse_balance(
    balance: str | Sequence[str], *, is_hetero: bool, has_train_mask: bool
) -> tuple[str, ...]:
    """Reads ``'nodes,edges'`` or ``['nodes', 'edges']``."""
    names = tuple(balance.split(',') if isinstance(balance, str) else balance)
    if not names or not set(names) <= set(BALANCES) or len(set(names)) < len(names):
        raise ValueError(f"'balance' must be some of {list(BALANCES)} (got {balance!r})")
    if 'train' in names and not has_train_mask:
        raise ValueError(
            "balance='train' needs training nodes (got a graph without 'train_mask'; "
            "pass 'split' to make one)"
        )
    if 'types' in names and not is_hetero:
        raise ValueError("balance='types' needs a HeteroData (got a graph with one type of nodes)")
    return names


def balance_weights(graph: TypedGraph, names: Sequence[str], connected: BoolArray) -> Balance:
    """The weights of all nodes.

    With ``'train'`` all nodes count, too: else the others could lie anywhere. With ``'types'``
    they count by type. Nodes that are not `connected`, bool [N], do not count at all.
    """
    if tuple(names) == ('nodes',) and connected.all():
        ones = np.broadcast_to(np.int64(1), (graph.num_nodes, 1))  # one number, not N
        return Balance(ones, ones)
    count = connected.astype(np.int64)
    in_degree = torch.zeros(graph.num_nodes, dtype=torch.int64)
    if 'edges' in names:
        of_type = graph.by_type(in_degree)
        for relation in graph.relations.values():
            for _, _, dst in edge_chunks(relation.edge_index):
                count_into(of_type[relation.dst], dst)
    degree = in_degree.numpy()
    if tuple(names) == ('edges',):
        single = (degree + count)[:, None]
        return Balance(single, single)
    columns = [] if 'types' in names else [count]
    metis = [count]
    if 'edges' in names:
        columns.append(degree)
    if 'train' in names:
        train = torch.cat([_is_train(nodes) for nodes in graph.nodes.values()]).numpy()
        columns.append(train * count)
    metis += columns if 'types' in names else columns[1:]
    if 'types' in names:
        for key, start in graph.offsets.items():
            nodes = slice(start, start + graph.nodes[key].num_nodes)
            column = np.zeros_like(count)
            column[nodes] = count[nodes]
            if column.any():
                columns.append(column)
                if column.sum() >= RARE * graph.num_nodes:
                    metis.append(column)
    return Balance(np.stack(columns, axis=1), np.stack(metis, axis=1))


def _is_train(nodes: NodeSet) -> Tensor:
    mask = nodes.attrs.get('train_mask')
    if mask is None:
        return torch.zeros(nodes.num_nodes, dtype=torch.bool)
    return mask.reshape(nodes.num_nodes, -1).any(dim=1)


def batch_size(num_nodes: int, num_parts: int) -> int:
    """Nodes decided upon at a time, a hundredth of a part."""
    return max(1, min(LARGEST_BATCH, num_nodes // (_BATCHES_PER_PART * num_parts)))


def has_room(weights: Int64Array, loads: FloatArray, caps: FloatArray) -> BoolArray:
    """Whether a part can take a node, bool [B, P], of weights [B, C], loads [P, C] and caps [C]."""
    room = np.ones((len(weights), len(loads)), dtype=bool)
    for constraint, cap in enumerate(caps):
        weight = weights[:, constraint, None]
        room &= (loads[:, constraint] + weight <= cap) | (weight == 0)
    return room
