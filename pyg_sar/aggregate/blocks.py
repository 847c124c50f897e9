"""The blocks of a plan, each with what a message function reads there."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pyg_sar.aggregate.program import Arguments, Surroundings
from pyg_sar.comm import Exchange, Rows
from pyg_sar.shard.plan import Block, Plan


class Blocks:
    """The blocks of a plan with the arguments the message function reads there.

    Args:
        kept: Rows of every block: filled by the first iteration when empty, then used instead of
            an exchange; None to fetch them in every iteration.
    """

    def __init__(
        self,
        arguments: Arguments,
        plan: Plan,
        exchange: Exchange,
        surroundings: Surroundings,
        kept: list[Rows] | None,
    ) -> None:
        self.arguments = arguments
        self.plan = plan
        self.exchange = exchange
        self.surroundings = surroundings
        self.kept = kept

    def __iter__(self) -> Iterator[tuple[Block, Tensor, Arguments]]:
        """Yields every block, its edge_index and its arguments (source and edge rows)."""
        a = self.arguments
        for block, rows in zip(self.plan.blocks, self._rows(), strict=True):
            self.surroundings.enter(block.part)
            edge = tuple(block.take(t) for t in a.edge)
            yield block, block.edge_index, Arguments(tuple(rows), a.dst, edge, a.whole, a.learnable)

    def _rows(self) -> Iterator[Rows]:
        if self.kept:
            yield from self.kept
            return
        for rows in self.exchange.fetch(self.arguments.src, keep=self.kept is not None):
            if self.kept is not None:
                self.kept.append(rows)
            yield rows
