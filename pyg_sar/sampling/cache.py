"""Rows of other ranks' nodes that are kept, so that batches need not fetch them again.

Which ones is decided once, from the edges into own nodes: how often a batch is expected to reach
each source of them. What is kept changes no batch, it only travels less. The rows are fetched again
before an epoch when an attribute of any rank is another tensor or was written to.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.sampling.ask.messages import ask_for_rows
from pyg_sar.sampling.attributes import Attributes, NodeKey
from pyg_sar.sampling.draw.numbering import number
from pyg_sar.sampling.found import Kept
from pyg_sar.sampling.graph import Graph
from pyg_sar.sampling.rounds import Fans
from pyg_sar.sampling.seeds.inputs import Inputs


def is_fresh(kept: Kept, attributes: Attributes) -> bool:
    """Whether the attributes of own nodes are the tensors of the last :func:`fill`, unchanged.

    They are held until then, so that no other tensor has their place in memory. What is written by
    ``x.data`` is not seen, as torch does not count it.
    """
    return kept.of is not None and None not in (own := _state(attributes)) and own == kept.of[1]


def _state(attributes: Attributes) -> list[Any]:
    return [
        None if value.is_inference() else (key, name, value.data_ptr(), value._version)
        for key, values in attributes.nodes.items()
        for name, value in values.items()
    ]


def choose_rows(
    graph: Graph, attributes: Attributes, fans: Fans, inputs: Inputs, num_bytes: int
) -> Kept:
    """The rows of other ranks that batches read most, as many as fit; their values are not here."""
    visits = _expected_visits(graph, fans, inputs)
    position, worth, sizes = {}, [], []
    for key, (found, count) in visits.items():
        values = attributes.nodes[key].values()
        row_bytes = sum(math.prod(v.shape[1:]) * v.element_size() for v in values)
        position[key] = found
        worth.append(count / max(row_bytes, 1))
        sizes.append(torch.full(found.shape, row_bytes))
    order = torch.argsort(torch.cat(worth), descending=True, stable=True)
    size = torch.cat(sizes)[order]
    is_kept = torch.zeros(order.numel(), dtype=torch.bool)
    is_kept[order] = (size.cumsum(0) <= num_bytes) & (torch.cat(worth)[order] > 0)
    parts = torch.split(is_kept, [found.numel() for found in position.values()])
    return Kept({key: position[key][k] for key, k in zip(position, parts, strict=True)}, {})


def fill(kept: Kept, graph: Graph, attributes: Attributes) -> None:
    """Fetches the rows (collective: three all-to-alls, which nothing compares before)."""
    kept.values = ask_for_rows(graph, attributes, kept.position)
    kept.of = attributes, _state(attributes)


def _expected_visits(
    graph: Graph, fans: Fans, inputs: Inputs
) -> dict[NodeKey, tuple[Tensor, Tensor]]:
    """Positions of the halo by type, and how often a batch of this rank is expected to reach each.

    A node that is reached l times on average is there with probability ``1 - exp(-l)``, and then
    draws each of its d edges with probability ``min(k / d, 1)``. What is reached through nodes of
    other ranks is not known here.
    """
    own = {key: nodes.rank_ptr[nodes.rank + 1] - nodes.first for key, nodes in graph.nodes.items()}
    halo = {key: torch.empty(0, dtype=torch.int64) for key in graph.nodes}
    place = {}
    for key, edges in graph.edges.items():
        nodes, source = graph.nodes[edges.src], edges.source.long()
        is_own = (source >= nodes.first) & (source < nodes.first + own[edges.src])
        new, found = number(halo[edges.src], source[~is_own])
        halo[edges.src] = torch.cat([halo[edges.src], new])
        place[key] = source - nodes.first
        place[key][~is_own] = own[edges.src] + found
    size = {key: own[key] + halo[key].numel() for key in own}
    reached = {key: torch.zeros(num, dtype=torch.float64) for key, num in size.items()}
    for end, position, share in inputs.visits():
        row = position - graph.nodes[end].first
        is_own = (row >= 0) & (row < own[end])
        _, found = number(halo[end], position[~is_own])
        row[~is_own] = own[end] + found
        is_known = row < size[end]
        reached[end].index_add_(0, row[is_known], share[is_known])
    total = {key: count.clone() for key, count in reached.items()}
    for hop in range(fans.num_hops):
        following = {key: torch.zeros_like(each) for key, each in reached.items()}
        for key, edges in graph.edges.items():
            k, degree = fans.num_neighbors[key][hop], edges.ptr.diff()
            chance = torch.ones_like(degree, dtype=torch.float64)
            if k >= 0:
                chance = (k / degree.clamp(min=1)).clamp(max=1.0)
            there = -torch.expm1(-reached[edges.dst][: own[edges.dst]])
            each = torch.repeat_interleave(there * chance, degree)
            following[edges.src].index_add_(0, place[key], each)
        reached = following
        total = {key: total[key] + count for key, count in reached.items()}
    order = {key: torch.argsort(found) for key, found in halo.items()}
    return {key: (halo[key][at], total[key][own[key] :][at]) for key, at in order.items()}
