"""What a rank holds, in counts: nodes, edges, halo rows, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


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
    """

    own: tuple[int, ...]
    own_edges: tuple[int, ...]
    halo: tuple[int, ...] = ()
    halo_edges: tuple[int, ...] = ()
    boundary: int = 0

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
        """The same proportions, smaller; what is not empty stays so."""

        def shrink(counts: Sequence[int], factor: float) -> tuple[int, ...]:
            return tuple(max(round(n * factor), 1) if n else 0 for n in counts)

        return RankSizes(
            shrink(self.own, rows),
            shrink(self.own_edges, edges),
            shrink(self.halo, rows),
            shrink(self.halo_edges, edges),
            round(self.boundary * rows),
        )

    def with_fewer_blocks(self, most: int) -> RankSizes:
        """The same sums and the same largest remote block, in at most `most` remote blocks."""
        if len(self.halo) <= most or len(self.own) > 1:
            return self
        return replace(self, halo=_fewer(self.halo, most), halo_edges=_fewer(self.halo_edges, most))


def _fewer(counts: Sequence[int], most: int) -> tuple[int, ...]:
    largest = max(counts)
    rest, ones = divmod(sum(counts) - largest, most - 1)
    return (largest, *(rest + (i < ones) for i in range(most - 1)))
