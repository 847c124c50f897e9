"""Rows of other ranks' nodes that are kept, so that batches need not fetch them again.

Which ones is decided once, from the edges into own nodes: how often a batch is expected to reach
each source of them. A cache changes no batch, rows only travel less. The rows are fetched again
before an epoch when an attribute of any rank is another tensor or was written to.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.loader.arguments import Fans
from pyg_sar.loader.ask import ask_for_rows
from pyg_sar.loader.attributes import AttributeRows, Values
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.numbering import number
from pyg_sar.loader.seeds.seeds import Seeds
from pyg_sar.shard.file_names import NodeKey
from pyg_sar.utils.offload import start_of


class Cache:
    """The rows of other ranks that batches read most, as many as fit.

    Attributes:
        position: Of their nodes, by type, ascending.
        values: Their attributes, once :meth:`fill` has fetched them.
        num_read: How many rows of other ranks batches have read.
        num_found: How many of these were here.
    """

    def __init__(
        self, graph: LocalGraph, attributes: AttributeRows, fans: Fans, seeds: Seeds, num_bytes: int
    ) -> None:
        self.values: dict[NodeKey, list[Values]] = {}
        self.num_read = self.num_found = 0
        self._graph = graph
        self._filled_from: tuple[Any, Any] = None, None
        positions, worth, sizes = {}, [], []
        for key, (position, count) in _expected_visits(graph, fans, seeds).items():
            values = attributes.nodes[key].values()
            row_bytes = sum(math.prod(v.shape[1:]) * v.element_size() for v in values)
            positions[key] = position
            worth.append(count / max(row_bytes, 1))
            sizes.append(torch.full(position.shape, row_bytes))
        order = torch.argsort(torch.cat(worth), descending=True, stable=True)
        size = torch.cat(sizes)[order]
        is_kept = torch.zeros(order.numel(), dtype=torch.bool)
        is_kept[order] = (size.cumsum(0) <= num_bytes) & (torch.cat(worth)[order] > 0)
        parts = torch.split(is_kept, [position.numel() for position in positions.values()])
        self.position = {key: positions[key][k] for key, k in zip(positions, parts, strict=True)}

    def is_fresh(self, attributes: AttributeRows) -> bool:
        """Whether the attributes of own nodes are the tensors of the last :meth:`fill`, unchanged.

        The cache holds them, so that no other tensor takes their memory. Writes by ``x.data`` are
        not seen, as torch does not count them.
        """
        own = _state(attributes)
        return None not in own and own == self._filled_from[1]

    def fill(self, attributes: AttributeRows) -> None:
        """Fetches the rows (collective: three all-to-alls, which nothing compares before)."""
        self.values = ask_for_rows(self._graph, attributes, self.position)
        self._filled_from = attributes, _state(attributes)

    def count(self, num_read: int, num_found: int) -> None:
        """Counts rows that were read."""
        self.num_read += num_read
        self.num_found += num_found


def _state(attributes: AttributeRows) -> list[Any]:
    return [
        None if value.is_inference() else (key, name, start_of(value), value._version)
        for key, values in attributes.nodes.items()
        for name, value in values.items()
    ]


def _expected_visits(
    graph: LocalGraph, fans: Fans, seeds: Seeds
) -> dict[NodeKey, tuple[Tensor, Tensor]]:
    """Positions of the halo by type, and how often a batch of this rank is expected to reach each.

    A node that is reached l times on average is there with probability ``1 - exp(-l)``, and then
    draws each of its d edges with probability ``min(k / d, 1)``. Visits by way of nodes of
    other ranks are not counted.
    """
    own = {key: nodes.num_own for key, nodes in graph.nodes.items()}
    halo = {key: torch.empty(0, dtype=torch.int64) for key in graph.nodes}
    sources = {}
    for key, edges in graph.edges.items():
        nodes, source = graph.nodes[edges.src], edges.source.long()
        is_far = ~nodes.is_own(source)
        new, index = number(halo[edges.src], source[is_far])
        halo[edges.src] = torch.cat([halo[edges.src], new])
        sources[key] = source - nodes.first
        sources[key][is_far] = own[edges.src] + index
    size = {key: own[key] + halo[key].numel() for key in own}
    reached = {key: torch.zeros(num, dtype=torch.float64) for key, num in size.items()}
    share = min(seeds.batch_size / max(seeds.total, 1), 1.0)
    for end, position in zip(seeds.types, seeds.ends, strict=True):
        row = position - graph.nodes[end].first
        is_far = ~graph.nodes[end].is_own(position)
        _, index = number(halo[end], position[is_far])
        row[is_far] = own[end] + index
        seen = row[row < size[end]]
        reached[end].index_add_(0, seen, torch.full(seen.shape, share, dtype=torch.float64))
    total = {key: count.clone() for key, count in reached.items()}
    for hop in range(fans.num_hops):
        following = {key: torch.zeros_like(count) for key, count in reached.items()}
        for key, edges in graph.edges.items():
            k, degree = fans.num_neighbors[key][hop], edges.ptr.diff()
            chance = torch.ones_like(degree, dtype=torch.float64)
            if k >= 0:
                chance = (k / degree.clamp(min=1)).clamp(max=1.0)
            there = -torch.expm1(-reached[edges.dst][: own[edges.dst]])
            visits = torch.repeat_interleave(there * chance, degree)
            following[edges.src].index_add_(0, sources[key], visits)
        reached = following
        total = {key: total[key] + count for key, count in reached.items()}
    order = {key: torch.argsort(position) for key, position in halo.items()}
    return {key: (halo[key][at], total[key][own[key] :][at]) for key, at in order.items()}
