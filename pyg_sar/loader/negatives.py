"""Pairs of nodes without an edge, for the links of a batch.

The owner of a destination has all edges into it. So it draws the node and tells whether the pair is
an edge, in one answer. The draw follows from the pair's index among the negatives of its batch and
from a counter of tries: it is the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from pyg_sar.comm.vote import agree, raise_on_all, vote
from pyg_sar.loader import choose
from pyg_sar.loader.arguments import nodes_of, own_values
from pyg_sar.loader.ask import Traffic, send
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.utils.rng import hashed_on, unit

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
            if vote('negative links', left.numel() > 0) == [0]:
                return src, dst
            if start + num > _MOST:
                drawn = self._src if source is None else None
                src[left] = _last(drawn, tried.view(-1, num)[is_left])
                dst[left] = _last(self._dst, answers.view(-1, num)[is_left])
                raise_on_all(partial(_check_found, dst[left]))
                return src, dst
            start, num = start + num, min(8 * num, _MOST)

    def _refuses(self, row: Tensor, source: Tensor) -> Tensor:
        start, end = self._ptr[row], self._ptr[row + 1]
        wanted = source.to(self._source.dtype)
        edge = choose.first_above(self._source, start, end, wanted - 1)
        refused = torch.zeros_like(edge, dtype=torch.bool)
        if self._is_one_type:
            refused = source == self._first + row
        at = (edge < end).nonzero().view(-1)
        refused[at] |= self._source[edge[at]] == wanted[at]
        return refused


def _check_found(drawn: Tensor) -> None:
    missing = int((drawn < 0).sum())
    if missing:
        raise ValueError(
            "'neg_sampling' must find two nodes without an edge for each link (got none in "
            f'{_MOST} tries for {missing} links of a round); leave these links out'
        )


def _last(nodes: Population | None, tried: Tensor) -> Tensor:
    """Nodes for links without a pair: of nodes with times the earliest, as in PyG.

    Mostly these links are so early that no other nodes are there.
    """
    if nodes is not None and nodes.earliest is not None:
        return torch.full_like(tried[:, 0], nodes.earliest)
    return tried.amax(1)


class Population:
    """Draws nodes of a type, of all ranks (collective to construct: a small all-gather).

    They are alike likely, or by weight, or only those up to a time. A rank knows how much each part
    has, and draws a part; the owner draws in it. So no rank holds weights or times of other ranks'
    nodes. Each part publishes the times of its nodes number 1, 2, 4, 8 ... From these a rank knows
    how many nodes there are at a time, up to a factor of 2: at most half of its draws are rejected.

    Args:
        graph: The own part of it.
        key: The type.
        weight: Of own nodes, at least 0, float64 ``[num_own]``; None for all alike.

    Attributes:
        total: The sum of all weights, or how many nodes there are.
        earliest: The position of the node with the least time, of these the one with the least id;
            None without times.
    """

    def __init__(self, graph: LocalGraph, key: NodeKey, weight: Tensor | None) -> None:
        self._graph, self._nodes, self._weight = graph, graph.nodes[key], weight
        self._time = graph.times.get(key)
        self._ptr = torch.tensor(self._nodes.own_ptr)
        counts = self._ptr.diff()
        sizes: list[float] = counts.tolist()
        levels: list[list[float]] = [[] for _ in sizes]
        if weight is not None:
            self._cdf = choose.cumulated(weight, self._ptr)
            sizes = [float(part.sum()) for part in torch.split(weight, counts.tolist())]
        elif self._time is not None:
            part = torch.repeat_interleave(counts).numpy()
            self._order = torch.from_numpy(np.lexsort((self._time.numpy(), part)))
            times = torch.split(self._time[self._order], counts.tolist())
            levels = [t[[2**i - 1 for i in range(len(t).bit_length())]].tolist() for t in times]
        answers: list[Any] = agree((sizes, counts.tolist(), levels, self._first_ones()))
        sizes, counts_of, levels, first_ones = (
            [value for own in of_ranks for value in own] for of_ranks in zip(*answers, strict=True)
        )
        self.earliest: int | None = min(first_ones)[-1] if first_ones else None
        self._sizes = torch.tensor(sizes, dtype=torch.float64)
        self.total = float(self._sizes.sum())
        self._counts = torch.tensor(counts_of)
        self._levels = [torch.tensor(level, dtype=graph.time_dtype) for level in levels]

    def _first_ones(self) -> list[tuple[float, int, int]]:
        """Time, id and position of the earliest own node, if there is one."""
        if self._time is None or not self._time.numel():
            return []
        row = int(np.lexsort((self._nodes.n_id.numpy(), self._time.numpy()))[0])
        return [(self._time[row].item(), int(self._nodes.n_id[row]), self._nodes.first + row)]

    def find(self, state: Tensor, until: Tensor | None) -> Tensor:
        """Positions of nodes, drawn by hashes; -1 where the node is not there by the time `until`.

        Collective as :meth:`ask`, with weights or times.
        """
        if self._weight is not None or self._time is not None:
            return self.ask(state, until)
        part = self._parts(state, None)
        first = self._counts.cumsum(0) - self._counts
        return first[part] + _scaled(state, self._counts[part])

    def ask(
        self,
        state: Tensor,
        until: Tensor | None,
        source: Tensor | None = None,
        refuses: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Has owners draw, as :meth:`find` (collective: three all-to-alls).

        -1 also comes where the owner `refuses` the pair of `source` and the node that it draws: the
        function takes own rows and positions of sources, and tells which pairs are refused, bool.
        """
        part, per_rank = self._parts(state, until), self._graph.parts_per_rank
        order = torch.argsort(part, stable=True)
        of_ranks = torch.bincount(part // per_rank, minlength=self._graph.world_size).tolist()
        counts = Traffic({'nodes': of_ranks})
        columns = part % per_rank, state, until, source
        came = send([counts.question('nodes', t[order]) for t in columns if t is not None])
        own_part, hashes = next(came), next(came)
        times, sources = (None if t is None else next(came) for t in (until, source))
        position = self._draw(own_part, hashes, times)
        if refuses is not None and sources is not None:
            there = (position >= 0).nonzero().view(-1)
            row = position[there] - self._nodes.first
            position[there[refuses(row, sources[there])]] = -1
        (answer,) = send([counts.answer('nodes', position)])
        return torch.empty_like(answer).index_copy_(0, order, answer)

    def _parts(self, state: Tensor, until: Tensor | None) -> Tensor:
        sizes = self._sizes
        if self._weight is None and self._time is not None and until is not None:
            every = range(len(self._levels))
            sizes = torch.stack([self._bound(p, until) for p in every], dim=1).double()
        end = sizes.cumsum(-1)
        drawn = unit(hashed_on(state, 0)) * end[..., -1]
        end = end.expand(state.numel(), -1).contiguous()
        part = torch.searchsorted(end, drawn.unsqueeze(1), right=True).view(-1)
        return part.clamp_(max=self._counts.numel() - 1)

    def _bound(self, part: int, until: Tensor) -> Tensor:
        """At least as many nodes as a part has by a time, and at most twice as many."""
        reached = torch.searchsorted(self._levels[part], until, right=True)
        return ((1 << reached) - 1).clamp(max=int(self._counts[part]))

    def _draw(self, part: Tensor, state: Tensor, until: Tensor | None) -> Tensor:
        """Positions of own nodes in own parts; -1 where there is none by the time."""
        start, end = self._ptr[part], self._ptr[part + 1]
        count = end - start
        if self._weight is not None:
            count = torch.where(count > 0, self._cdf[(end - 1).clamp(min=0)], 0)
        elif self._time is not None and until is not None:
            first = self._graph.first_part
            for own in range(self._graph.parts_per_rank):
                at = (part == own).nonzero().view(-1)
                count[at] = self._bound(first + own, until[at])
        position = torch.full_like(part, -1)
        some = (count > 0).nonzero().view(-1)
        drawn, start = _scaled(state[some], count[some]), start[some]
        if self._weight is not None:
            row = choose.first_above(self._cdf, start, end[some], drawn)
        elif self._time is not None and until is not None:
            row = self._order[start + drawn]
        else:
            row = start + drawn
        if self._time is not None and until is not None:
            is_there = self._time[row] <= until[some]
            some, row = some[is_there], row[is_there]
        position[some] = self._nodes.first + row
        return position


def _scaled(state: Tensor, count: Tensor) -> Tensor:
    return torch.minimum((unit(hashed_on(state, 1)) * count).long(), count - 1)
