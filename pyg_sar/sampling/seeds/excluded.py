"""Edges that a batch must not have, as it is asked for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_sar.sampling.draw.choose import ranges
from pyg_sar.sampling.draw.numbering import number


@dataclass(frozen=True, eq=False)
class Excluded:
    """Pairs of nodes, by batches of parts: no edge between them is in that batch.

    Attributes:
        dst: Batches and destinations in one number, ascending, int64 ``[M]``.
        pair: Places in these and sources in one number, ascending, int64.
        num_dst: How many nodes of the type of destinations there are.
        num_src: How many of the type of sources.
        batch_of_group: The part's batch of every group; None where groups are these.
    """

    dst: Tensor
    pair: Tensor
    num_dst: int
    num_src: int
    batch_of_group: Tensor | None

    @staticmethod
    def of(
        batch: Tensor,
        src: Tensor,
        dst: Tensor,
        totals: tuple[int, int],
        batch_of_group: Tensor | None,
    ) -> Excluded:
        """Of pairs given by their part's batches, and by positions."""
        num_src, num_dst = totals
        listed, place = number(dst[:0], batch * num_dst + dst)
        pair = torch.unique(place * num_src + src)
        return Excluded(listed, pair, num_dst, num_src, batch_of_group)

    def among(
        self, group: Tensor, position: Tensor, count: Tensor, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Which edges are between such pairs: the places of their destinations, and their own.

        Args:
            group: Of destinations, int64 ``[N]``.
            position: Their positions, int64 ``[N]``.
            count: How many edges each has, int64 ``[N]``.
            source: The positions of the edges' sources, int64 ``[E]``.
        """
        if not self.pair.numel():
            return group[:0], group[:0]
        batch = group if self.batch_of_group is None else self.batch_of_group[group]
        place, is_listed = _find(self.dst, batch * self.num_dst + position)
        listed = is_listed.nonzero().view(-1)
        node = torch.repeat_interleave(listed, count[listed])
        edge = ranges((count.cumsum(0) - count)[listed], count[listed])
        _, is_pair = _find(self.pair, place[node] * self.num_src + source[edge])
        return node[is_pair], edge[is_pair]


def _find(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Places in ascending values, and whether what is wanted is there."""
    place = torch.searchsorted(values, wanted).clamp_(max=values.numel() - 1)
    return place, values[place] == wanted
