"""The way back: row gradients go to the ranks that own the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from pyg_sar.comm.buffers import Buffers, Lend, Rows
from pyg_sar.comm.swap import GRADIENTS_TAG, Swap
from pyg_sar.shard.shard import Step

if TYPE_CHECKING:
    from pyg_sar.comm.exchange import Exchange


class GradientReturn:
    """The adjoint of :meth:`Exchange.fetch`: sends each block's row gradients to their owner.

    Blocks come in the order of the plan: fill :meth:`rows`, then :meth:`send`. The gradients of as
    many blocks as the exchange is deep travel while the next block is computed. They are added in
    the order of the steps once the next have been sent, so sums do not depend on timing.

    Gradients of other ranks are added to `out`, ``[num_own, ...]`` of each tensor: zeros, or of any
    content where all own blocks are written. `own` computes the gradients of the own blocks, once
    the first messages are on their way. These replace `out`, which then tells only shapes and
    dtypes; own blocks are skipped.
    """

    def __init__(
        self, exchange: Exchange, out: Sequence[Tensor], *, own: Callable[[], Rows] | None = None
    ) -> None:
        self.exchange, self.out, self._own = exchange, list(out), own
        self._form = exchange.wire.like(self.out)
        self._lend: Lend = exchange.buffers
        shard = exchange.shard
        self._own_blocks = iter(range(shard.parts_per_rank if own is None else 0))
        self._steps = iter(shard.steps)
        self._filled: tuple[Step, Buffers] | None = None
        self._travelling: deque[tuple[Swap, Step]] = deque()

    def rows(self) -> Rows:
        """Memory for the gradients ``[num_rows, ...]`` of the next block's source rows.

        For an own block views into `out`; for a remote one a buffer of any content.
        """
        block = next(self._own_blocks, None)
        if block is not None:
            start, end = self.exchange.shard.own_ptr[block : block + 2]
            return [o[start:end] for o in self.out]
        step = next(self._steps)
        self._filled = step, self._lend(self.out, step.recv_rows)
        return self._filled[1].rows

    def takes_over(self, make: Callable[[Rows], None], read: Rows) -> bool:
        """Whether the next block's owner computes the gradients from `read`; else do it here."""
        return False

    def send(self) -> None:
        """Sends the gradients in :meth:`rows`."""
        if self._filled is not None:
            (step, filled), self._filled = self._filled, None
            self._start(step, self.exchange.wire.recast(filled, self._form, self._lend))

    def finish(self) -> Rows:
        """Waits for the last gradients; returns the sums, :attr:`out`."""
        self._add_own()  # on a rank that has sent nothing
        while self._travelling:
            self._add(*self._arrived())
        return self.out

    def _start(self, step: Step, sent: Buffers) -> None:
        is_full = len(self._travelling) == self.exchange.depth
        arrived = self._arrived() if is_full else None
        received = self._lend(self._form, step.send_rows)
        swap = Swap(received, step.send_rank, sent, step.recv_rank, step.part, GRADIENTS_TAG)
        self._travelling.append((swap, step))
        self._add_own()  # while the gradients of this block are on their way
        if arrived is not None:
            self._add(*arrived)

    def _arrived(self) -> tuple[Step, Buffers]:
        """The gradients that have travelled longest, once they are here, and their step."""
        swap, step = self._travelling.popleft()
        swap.wait()
        swap.sent.free()
        return step, swap.received

    def _add_own(self) -> None:
        if self._own is not None:
            self.out, self._own = self._own(), None

    def _add(self, step: Step, gradients: Buffers) -> None:
        self.exchange.add(step, self.out, gradients.rows)
        gradients.free()
