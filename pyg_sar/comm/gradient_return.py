"""The way back: row gradients go to the ranks that own the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from pyg_sar.comm.buffers import Buffers, Rows
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.swap import GRADIENTS_TAG, Swap
from pyg_sar.shard.shard import Step


class GradientReturn:
    """The adjoint of :meth:`Exchange.fetch`: sends each block's row gradients to their owner.

    Blocks come in the order of the plan: fill :meth:`rows`, then :meth:`send`. The gradients of one
    block travel while the next block is computed, and are added in the order of the steps once the
    next have been sent, so sums do not depend on timing.

    Args:
        exchange: The exchange whose adjoint it is.
        out: ``[num_own, ...]`` of each tensor, which gradients of other ranks are added to: zeros,
            or of any content where all own blocks are written.
        own: Makes what own blocks give, in the place of `out`, whose rows tell shapes and dtypes
            only: once the first gradients are on their way. Own blocks do not come then.
    """

    def __init__(
        self, exchange: Exchange, out: Sequence[Tensor], *, own: Callable[[], Rows] | None = None
    ) -> None:
        self.exchange = exchange
        self.out = list(out)
        self._own = own
        self._next = 0 if own is None else exchange.shard.parts_per_rank
        self._filled: Buffers | None = None
        self._travelling: tuple[Swap, Tensor] | None = None

    def rows(self) -> Rows:
        """Where the gradients ``[num_rows, ...]`` of the next block's source rows are to be put.

        For an own block views into `out`; for a remote one a buffer of any content.
        """
        step = self._step()
        if step is None:
            shard = self.exchange.shard
            start, end = shard.own_ptr[self._next], shard.own_ptr[self._next + 1]
            return [o[start:end] for o in self.out]
        self._filled = self.exchange.buffers(self.out, step.recv_rows)
        return self._filled.rows

    def send(self) -> None:
        """Sends what was put into :meth:`rows`."""
        step, filled = self._step(), self._filled
        self._next, self._filled = self._next + 1, None
        if step is None:
            return
        assert filled is not None
        form = self.exchange.wire.like(self.out)
        packed = self._packed(filled, form)
        del filled
        arrived = self._arrived()
        received = self.exchange.buffers(form, step.send_index.numel())
        swap = Swap(received, step.send_rank, packed, step.recv_rank, step.part, GRADIENTS_TAG)
        self._travelling = swap, step.send_index
        self._make_own()
        self._add(arrived)  # while the gradients of this block are on their way

    def finish(self) -> Rows:
        """Waits for the last gradients; returns what they were added to."""
        self._make_own()
        self._add(self._arrived())
        return self.out

    def _make_own(self) -> None:
        if self._own is not None:
            self.out, self._own = self._own(), None

    def _packed(self, filled: Buffers, form: Rows) -> Buffers:
        """Gradients as they travel."""
        if not any(self.exchange.wire.narrows(o) for o in self.out):
            return filled
        packed = self.exchange.buffers(form, filled.rows[0].size(0))
        for sent, rows in zip(packed.rows, filled.rows, strict=True):
            sent.copy_(rows)
        filled.free()
        return packed

    def _step(self) -> Step | None:
        shard = self.exchange.shard
        if self._next < shard.parts_per_rank:
            return None
        return shard.steps[self._next - shard.parts_per_rank]

    def _arrived(self) -> tuple[Buffers, Tensor] | None:
        """Waits for the gradients that travel; gives them and the own rows they belong to."""
        if self._travelling is None:
            return None
        swap, index = self._travelling
        self._travelling = None
        swap.wait()
        swap.free_sent()
        return swap.received, index

    def _add(self, arrived: tuple[Buffers, Tensor] | None) -> None:
        if arrived is None:
            return
        received, index = arrived
        for out, rows in zip(self.out, received.rows, strict=True):
            self.exchange.wire.add(out, index, rows)
        received.free()
