"""Draws from the nodes of all ranks: equally likely, or by weight, or only those up to a time.

A rank knows how much each part has, and draws a part; the owner draws in it. So no rank holds
weights or times of other ranks' nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.comm.vote import agree
from pyg_sar.loader import choose
from pyg_sar.loader.ask import Traffic, send
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.shard.format import NodeKey
from pyg_sar.utils.rng import hashed_on, unit

Refuses = Callable[[Tensor, Tensor], Tensor]
"""Takes own rows and positions of sources, and tells which pairs are refused, bool."""


class Population:
    """The nodes of a type (collective to construct: a small all-gather).

    With times, a part tells those of its 1st, 2nd, 4th, 8th ... node. So others know how many it
    has by a time up to a factor of 2, and at least half of what they draw is there.

    Args:
        graph: The own part of it.
        key: The type.
        weight: Of own nodes, at least 0, float64 ``[num_own]``; None for all alike.

    Attributes:
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
        self._counts = torch.tensor(counts_of)
        self._levels = [torch.tensor(level, dtype=graph.time_dtype) for level in levels]

    def _first_ones(self) -> list[tuple[float, int, int]]:
        """Time, id and position of the earliest own node, if there is one."""
        if self._time is None or not self._time.numel():
            return []
        row = int(np.lexsort((self._nodes.n_id.numpy(), self._time.numpy()))[0])
        return [(self._time[row].item(), int(self._nodes.n_id[row]), self._nodes.first + row)]

    @property
    def total(self) -> float:
        """The sum of all weights, or how many nodes there are."""
        return float(self._sizes.sum())

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
        refuses: Refuses | None = None,
    ) -> Tensor:
        """Has owners draw, as :meth:`find` (collective: three all-to-alls).

        -1 also comes where the owner `refuses` the pair of `source` and the node that it draws.
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
