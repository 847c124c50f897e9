"""What a rank holds, in counts, and how they change with the number of ranks.

Two models, fitted to the cut that is known:

- The share of edges cut is ``c(R) = k (1 - 1/R) R^b``. A random cut has k = 1 and b = 0, graphs
  with geometry have b near 0.5. With one known cut b is 0.25.
- A rank with m cut edges reads ``h = M (1 - exp(-m / M))`` distinct rows: m draws from a pool of M
  rows, which is a constant share of all remote rows. Without known rows the share is 1, which
  overestimates: real edges meet in hubs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class RankSizes:
    """The counts of one rank.

    Attributes:
        own: Own nodes of every own part.
        own_edges: Edges into own nodes from every own part.
        halo: Rows read from every remote part, in the order of the exchange: as many for each other
            rank as there are own parts.
        halo_edges: Edges into own nodes from every remote part.
        boundary: Rows sent in one exchange, summed over the readers.
        cover_share: Rows and sums that travel where sums may, of the halo rows of all ranks.
    """

    own: tuple[int, ...]
    own_edges: tuple[int, ...]
    halo: tuple[int, ...] = ()
    halo_edges: tuple[int, ...] = ()
    boundary: int = 0
    cover_share: float = 1.0

    @property
    def num_ranks(self) -> int:
        """This one and those it reads from."""
        return 1 + len(self.halo) // len(self.own)

    @property
    def num_own(self) -> int:
        """Own nodes."""
        return sum(self.own)

    @property
    def num_edges(self) -> int:
        """Edges into own nodes."""
        return sum(self.own_edges) + sum(self.halo_edges)

    @property
    def num_halo(self) -> int:
        """Rows received in one exchange."""
        return sum(self.halo)

    def scaled(self, rows: float, edges: float) -> RankSizes:
        """Rows and edges times a factor each; what is not empty keeps at least one."""

        def shrink(counts: Sequence[int], factor: float) -> tuple[int, ...]:
            return tuple(max(round(n * factor), 1) if n else 0 for n in counts)

        return RankSizes(
            shrink(self.own, rows),
            shrink(self.own_edges, edges),
            shrink(self.halo, rows),
            shrink(self.halo_edges, edges),
            round(self.boundary * rows),
            self.cover_share,
        )

    def with_fewer_blocks(self, most: int) -> RankSizes:
        """As many rows and edges in at most `most` remote blocks; the largest block stays."""
        if len(self.halo) <= most or len(self.own) > 1:
            return self

        def fewer(counts: Sequence[int]) -> tuple[int, ...]:
            largest = max(counts)
            rest, ones = divmod(sum(counts) - largest, most - 1)
            return (largest, *(rest + (i < ones) for i in range(most - 1)))

        return replace(self, halo=fewer(self.halo), halo_edges=fewer(self.halo_edges))


@dataclass(frozen=True)
class CutPoint:
    """What is known of a cut into ranks, at least 2.

    Attributes:
        share: Share of the edges that are cut.
        halo_rows: Halo rows of all ranks together, or None.
        skew: Rows of a rank's largest remote block over those of its mean one.
        imbalance: Edges and halo rows of the largest rank over those of the mean one.
        cover_share: As of :class:`RankSizes`.
    """

    num_ranks: int
    share: float
    halo_rows: float | None = None
    skew: float = 4.0
    imbalance: float = 1.1
    cover_share: float = 1.0


def extrapolate(
    num_nodes: int, num_edges: int, points: Sequence[CutPoint], num_ranks: int
) -> RankSizes:
    """The largest rank of a cut that is not known.

    Of the known cuts (`points`) the nearest counts, and the two with most ranks give the exponent.
    """
    if num_ranks == 1:
        return RankSizes((num_nodes,), (num_edges,))
    own = -(-num_nodes // num_ranks)
    near = min(points, key=lambda p: abs(math.log(p.num_ranks / num_ranks)))
    share = min(_share(points, near, num_ranks), 1 - 1 / num_ranks)
    pool = pool_share(near, num_nodes, num_edges) * num_nodes * (1 - 1 / num_ranks)
    rows = distinct(share * num_edges / num_ranks, pool) * near.imbalance
    edges = num_edges / num_ranks * near.imbalance
    weights = [1.0]
    if num_ranks > 2:
        largest = min(near.skew / (num_ranks - 1), 1.0)
        weights = [largest, *[(1 - largest) / (num_ranks - 2)] * (num_ranks - 2)]
    return RankSizes(
        own=(own,),
        own_edges=(round(edges * (1 - share)),),
        halo=tuple(min(n, own) for n in _dealt(rows, weights)),
        halo_edges=_dealt(edges * share, weights),
        boundary=math.ceil(rows),
        cover_share=near.cover_share,
    )


def _dealt(total: float, weights: Sequence[float]) -> tuple[int, ...]:
    """A number in whole shares of given weights, whose sum is right."""
    ends = [0, *(round(total * w) for w in accumulate(weights))]
    return tuple(b - a for a, b in pairwise(ends))


def _share(points: Sequence[CutPoint], near: CutPoint, num_ranks: int) -> float:
    def scale(p: CutPoint) -> float:
        return p.share / (1 - 1 / p.num_ranks)

    exponent = 0.25
    known = sorted((p for p in points if p.share > 0), key=lambda p: p.num_ranks)
    if len(known) > 1:
        low, high = known[-2:]
        exponent = math.log(scale(high) / scale(low)) / math.log(high.num_ranks / low.num_ranks)
        exponent = min(max(exponent, 0.0), 1.0)
    ratio = num_ranks / near.num_ranks
    return float(scale(near) * (1 - 1 / num_ranks) * ratio**exponent)


def pool_share(point: CutPoint, num_nodes: int, num_edges: int) -> float:
    """The pool M as a share of the remote rows, from the known rows by bisection; 1 if unknown."""
    remote = num_nodes * (1 - 1 / point.num_ranks)
    draws = point.share * num_edges / point.num_ranks
    if point.halo_rows is None or draws == 0:
        return 1.0
    rows = point.halo_rows / point.num_ranks
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if distinct(draws, middle * remote) < rows else (low, middle)
    return high


def distinct(draws: float, pool: float) -> float:
    """How many of `pool` rows so many draws with replacement meet, as expected."""
    return pool * -math.expm1(-draws / pool) if pool else 0.0
