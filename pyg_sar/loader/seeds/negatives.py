"""Pairs of nodes without an edge, for the links of a batch.

The owner of a destination has all edges into it. So it draws the node and tells whether the pair is
an edge, in one answer. The draw follows from the pair's index among the negatives of its batch and
from a counter of tries: it is the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from pyg_sar.comm.vote import count_ranks, raise_on_all
from pyg_sar.loader.choose import first_above
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.seeds.own import nodes_of, own_values
from pyg_sar.loader.seeds.population import Population
from pyg_sar.shard.format import EdgeKey
from pyg_sar.utils.rng import hashed_on

_MOST = 500  # tries


def read_neg_sampling(value: Any, ends: Sequence[Any]) -> NegativeSampling | None:
    """Reads `neg_sampling`; its weights become those of own nodes, float64 on the CPU.

    `ends` are the stores of sources and destinations.
    """
    wrong = f"'neg_sampling' must be 'binary', 'triplet' or a NegativeSampling (got {value!r}"
    try:
        asked = NegativeSampling.cast({'mode': value} if isinstance(value, str) else value)
    except (TypeError, ValueError) as error:
        raise ValueError(f'{wrong}: {error})') from None
    if asked is None:
        return None
    if not isinstance(asked, NegativeSampling) or not math.isfinite(asked.amount):
        raise ValueError(f'{wrong})')
    if asked.is_triplet() and asked.src_weight is not None:
        raise ValueError("'src_weight' has no meaning with triplets (got one): sources are given")
    weights = []
    for name, store in zip(('src_weight', 'dst_weight'), ends, strict=True):
        weight = getattr(asked, name)
        if weight is not None:
            weight = own_values(name, weight, nodes_of(store)[1])
            is_number = weight.dim() == 1 and not weight.is_complex()
            if not is_number or not bool((weight.isfinite() & (weight >= 0)).all()):
                raise ValueError(
                    f"'{name}' must be a number for each node, finite and at least 0 (got others)"
                )
            weight = weight.double()
        weights.append(weight)
    amount = float(asked.amount) if asked.is_binary() else int(asked.amount)
    return NegativeSampling(asked.mode, amount, *weights)


class Negatives:
    """Draws pairs that are no edges (collective to construct: two small all-gathers)."""

    def __init__(self, graph: LocalGraph, key: EdgeKey, asked: NegativeSampling) -> None:
        edges = graph.edges[key]
        self.amount, self.is_binary = asked.amount, asked.is_binary()
        self._first, self._ptr = graph.nodes[edges.dst].first, edges.ptr
        dst = torch.repeat_interleave(edges.ptr.diff()).numpy()
        order = torch.from_numpy(np.lexsort((edges.source.numpy(), dst)))
        self._source = edges.source[order]
        self._is_one_type = edges.src == edges.dst
        weights = zip((edges.src, edges.dst), (asked.src_weight, asked.dst_weight), strict=True)
        self._src, self._dst = (
            Population(graph, key, None if weight is None else graph.nodes[key].by_position(weight))
            for key, weight in weights
        )
        for name, nodes in (('src_weight', self._src), ('dst_weight', self._dst)):
            if not nodes.total > 0:
                raise ValueError(f"'{name}' must be above 0 for some node (got 0 for all)")
        self._is_timed = any(end in graph.times for end in (edges.src, edges.dst))

    def draw(
        self, state: Tensor, source: Tensor | None, until: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Positions of sources and destinations (collective; mostly four calls).

        For each of the hashes `state`, int64 ``[N]``. `source` None draws the sources, too. Both
        are there by the time `until` ``[N]``; None for any. Raises ValueError on all ranks, if no
        pair is found, and nodes have no times.
        """
        src = torch.empty_like(state) if source is None else source
        until = until if self._is_timed else None
        dst, left = torch.empty_like(state), torch.arange(state.numel())
        start, num = 0, 8 if self._is_timed else 2
        while True:
            hashes = hashed_on(state[left].unsqueeze(1), torch.arange(start, start + num)).view(-1)
            by = None if until is None else until[left].repeat_interleave(num)
            tried = src[left].repeat_interleave(num)
            if source is None:
                tried = self._src.find(hashed_on(hashes, 0), by)
            answers = self._dst.ask(hashed_on(hashes, 1), by, tried, self._refuses)
            is_found = ((answers >= 0) & (tried >= 0)).view(-1, num)
            some = is_found.any(1).nonzero().view(-1)
            at = some * num + is_found[some].byte().argmax(1)
            src[left[some]], dst[left[some]] = tried[at], answers[at]
            is_left = ~is_found.any(1)
            left = left[is_left]
            if not count_ranks('negative links', left.numel() > 0):
                return src, dst
            if start + num > _MOST:
                drawn = self._src if source is None else None
                src[left] = _last(drawn, tried.view(-1, num)[is_left])
                dst[left] = _last(self._dst, answers.view(-1, num)[is_left])
                self._check(dst[left])
                return src, dst
            start, num = start + num, min(8 * num, _MOST)

    def _refuses(self, row: Tensor, source: Tensor) -> Tensor:
        start, end = self._ptr[row], self._ptr[row + 1]
        wanted = source.to(self._source.dtype)
        edge = first_above(self._source, start, end, wanted - 1)
        refused = torch.zeros_like(edge, dtype=torch.bool)
        if self._is_one_type:
            refused = source == self._first + row
        at = (edge < end).nonzero().view(-1)
        refused[at] |= self._source[edge[at]] == wanted[at]
        return refused

    def _check(self, drawn: Tensor) -> None:
        """Raises on all ranks where a draw is -1, no pair (collective)."""

        def check() -> None:
            missing = int((drawn < 0).sum())
            if missing:
                raise ValueError(
                    "'neg_sampling' must find two nodes without an edge for each link (got none in "
                    f'{_MOST} tries for {missing} links of a round); leave these links out'
                )

        raise_on_all(check)


def _last(nodes: Population | None, tried: Tensor) -> Tensor:
    """Nodes for links without a pair: of nodes with times the earliest, as in PyG.

    Mostly these links are so early that no other nodes are there.
    """
    if nodes is not None and nodes.earliest is not None:
        return torch.full_like(tried[:, 0], nodes.earliest)
    return tried.amax(1)
