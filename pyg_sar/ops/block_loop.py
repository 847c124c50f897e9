"""The loop of every aggregation: fetch a block's rows, compute, return their gradient.

A class here gives one block after another, in the order of the plan, with the rows that it reads.
The body of the caller's loop computes. In backward the class takes the gradient of these rows to
their owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from typing import TypeAlias

from torch import Tensor

from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.send_recv import TensorList
from pyg_sar.shard.blocks import Block, Plan


@dataclass(frozen=True, eq=False)
class Later:
    """Computes gradients of a block's rows later, on the rank that owns the rows."""

    read: TensorList  # what it computes them from
    make: Callable[[Block, TensorList], None]


@dataclass(frozen=True, eq=False)
class BlockByBlock:
    """The rows of one block at a time, by one message per step."""

    plan: Plan
    exchange: Exchange
    # Rows of other ranks that backward reads again: an empty list is filled, a full one spares the
    # exchange; None to keep nothing.
    kept: list[Tensor] | None = None

    def all_gather_halo(self, tensors: TensorList) -> Iterator[tuple[Block, TensorList]]:
        """Every block with the rows ``[num_rows, ...]`` of each tensor that it reads.

        These are views of own or kept rows, or buffers that the next block overwrites. Collective,
        unless rows are kept or none are read.
        """
        blocks = self.plan.blocks
        if not tensors:
            return zip(blocks, repeat([]), strict=False)
        if self.kept:
            return zip(blocks, self._rows_again(tensors, self.kept), strict=True)
        fetched = self.exchange.all_gather_halo(tensors, keep=self.kept is not None)
        if self.kept is not None:
            fetched = self._keeping(fetched, self.kept)
        return zip(blocks, fetched, strict=True)

    def _keeping(self, fetched: Iterator[TensorList], kept: list[Tensor]) -> Iterator[TensorList]:
        for number, rows in enumerate(fetched):
            if number >= self.plan.shard.parts_per_rank:
                kept += rows
            yield rows

    def _rows_again(self, tensors: TensorList, kept: list[Tensor]) -> Iterator[TensorList]:
        for block in self.plan.blocks[: self.plan.shard.parts_per_rank]:
            yield [t[block.start : block.start + block.num_rows] for t in tensors]
        for first in range(0, len(kept), len(tensors)):
            yield kept[first : first + len(tensors)]

    def reduce_scatter(
        self,
        read: TensorList,
        out: TensorList,
        own: Callable[[], TensorList] | None = None,
        later: Later | None = None,
    ) -> Iterator[tuple[Block, TensorList, TensorList]]:
        """Every block again, with the rows that it reads and where their gradient is to be put.

        `read` is fetched again; it is empty if the gradient does not need it. `out` are gradients
        ``[num_own, ...]`` of own rows, complete in the end: zeros at first, or any numbers where
        the caller writes whole blocks; empty where no gradient is asked for. `own` computes `out`
        once gradients of other ranks' rows are on their way; the loop then skips own blocks.
        `later` may replace the loop's body where ranks take turns; the loop then skips blocks of
        other ranks' rows.
        """
        num_own = self.plan.shard.parts_per_rank
        blocks = islice(self.all_gather_halo(read), num_own if own is not None else 0, None)
        if not out:
            for block, rows in blocks:
                yield block, rows, []
            return
        packs, sources = None, []
        if later is not None:
            packs = [partial(later.make, block) for block in self.plan.blocks[num_own:]]
            sources = later.read
        returned = self.exchange.reduce_scatter_halo(out, blocks, own, packs, sources)
        for (block, rows), targets in returned:
            yield block, rows, targets


@dataclass(frozen=True, eq=False)
class AllAtOnce:
    """All rows of other ranks by one all-to-all for each tensor; otherwise as `BlockByBlock`."""

    plan: Plan
    exchange: Exchange
    kept: list[Tensor] | None = None

    def all_gather_halo(self, tensors: TensorList) -> Iterator[tuple[Block, TensorList]]:
        """As :meth:`BlockByBlock.all_gather_halo`."""
        halo = self.kept or (self.exchange.fetch(tensors) if tensors else [])
        if self.kept is not None and not self.kept:
            self.kept.extend(halo)
        return ((block, self._of(block, tensors, halo)) for block in self.plan.blocks)

    def reduce_scatter(
        self,
        read: TensorList,
        out: TensorList,
        own: Callable[[], TensorList] | None = None,
        later: Later | None = None,
    ) -> Iterator[tuple[Block, TensorList, TensorList]]:
        """As :meth:`BlockByBlock.reduce_scatter`; it leaves nothing for later."""
        num_halo, num_skipped = self.plan.shard.num_halo, 0
        halo = [t.new_empty(num_halo, *t.shape[1:]) for t in out]
        if own is not None:
            out[:], num_skipped = own(), self.plan.shard.parts_per_rank
        for number, (block, rows) in enumerate(self.all_gather_halo(read)):
            if number >= num_skipped:
                yield block, rows, self._of(block, out, halo)
        self.exchange.give_back(halo, out)

    def _of(self, block: Block, own: TensorList, halo: TensorList) -> TensorList:
        """The rows of a block's sources, views of own rows or of the halo."""
        is_own, start = block.part in self.plan.shard.parts, block.start
        start -= 0 if is_own else self.plan.shard.num_own
        return [t[start : start + block.num_rows] for t in (own if is_own else halo)]


BlockLoop: TypeAlias = BlockByBlock | AllAtOnce
