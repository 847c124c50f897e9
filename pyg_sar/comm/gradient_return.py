"""The way back: row gradients go to the ranks that own the rows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from pyg_sar.comm.buffers import Buffers, Rows
from pyg_sar.comm.exchange import Exchange, taken
from pyg_sar.comm.faults.errors import placed
from pyg_sar.comm.ranks import current
from pyg_sar.comm.swap import GRADIENTS_TAG, Swap, forms_of, tell_moved
from pyg_sar.shard.shard import Step


class GradientReturn:
    """The adjoint of :meth:`Exchange.fetch`: sends each block's row gradients to their owner.

    Blocks come in the order of the plan: fill :meth:`rows`, then :meth:`send`. The gradients of as
    many blocks as the exchange is deep travel while the next block is computed. They are added in
    the order of the steps once the next have been sent, so sums do not depend on timing.

    Gradients of other ranks are added to `out`, ``[num_own, ...]`` of each tensor: zeros, or of any
    content where all own blocks are written. `own` computes what the own blocks give, once the
    first gradients are on their way. It takes the place of `out`, whose rows then tell only shapes
    and dtypes; own blocks are skipped.
    """

    def __init__(
        self, exchange: Exchange, out: Sequence[Tensor], *, own: Callable[[], Rows] | None = None
    ) -> None:
        self.exchange = exchange
        self.out = list(out)
        self._form = exchange.wire.like(self.out)
        self._own = own
        self._comm = current()
        # What another rank takes in its turn is in memory of its own.
        self._buffers = partial(Buffers, None, 0) if self._comm.takes_turns else exchange.buffers
        self._words = placed(f'a return of {forms_of(self._form)}')
        shard = exchange.shard
        self._own_blocks = iter(range(shard.parts_per_rank if own is None else 0))
        self._steps = iter(shard.steps)
        self._filled: tuple[Step, Buffers] | None = None
        self._travelling: deque[tuple[Swap, Step]] = deque()

    def rows(self) -> Rows:
        """Where the gradients ``[num_rows, ...]`` of the next block's source rows are to be put.

        For an own block views into `out`; for a remote one a buffer of any content.
        """
        block = next(self._own_blocks, None)
        if block is not None:
            start, end = self.exchange.shard.own_ptr[block : block + 2]
            return [o[start:end] for o in self.out]
        step = next(self._steps)
        self._filled = step, self._buffers(self.out, step.recv_rows)
        return self._filled[1].rows

    def send(self) -> None:
        """Sends what was put into :meth:`rows`."""
        if self._filled is None:
            return
        (step, sent), self._filled = self._filled, None
        if [t.dtype for t in self._form] != [t.dtype for t in self.out]:
            sent = self._narrowed(sent)
        if self._comm.takes_turns:
            self._comm.offer(step.recv_rank, self._words, sent.rows)
            return
        is_full = len(self._travelling) == self.exchange.depth
        arrived = self._arrived() if is_full else None
        received = self.exchange.buffers(self._form, step.send_rows)
        swap = Swap(received, step.send_rank, sent, step.recv_rank, step.part, GRADIENTS_TAG)
        self._travelling.append((swap, step))
        self._add(arrived)  # while the gradients of this block are on their way

    def offer(self, make: Callable[[Rows], None], read: Rows) -> None:
        """In place of `rows` and `send`: the next block's owner makes the gradients from `read`."""
        step = next(self._steps)

        def narrowed(targets: Rows) -> None:
            wide = Buffers(None, 0, self.out, step.recv_rows).rows
            make(wide)
            for target, rows in zip(targets, wide, strict=True):
                target.copy_(rows)

        is_narrow = [t.dtype for t in self._form] != [t.dtype for t in self.out]
        like = [t.new_empty(1).expand(step.recv_rows, *t.shape[1:]) for t in self._form]
        made_by = narrowed if is_narrow else make
        self._comm.offer(step.recv_rank, self._words, like, made_by, read)

    def finish(self) -> Rows:
        """Waits for the last gradients; returns what they were added to."""
        if self._comm.takes_turns and self.out:
            self._take_offers()
        else:
            self._add(None)  # calls `own` on a rank that has sent nothing
            while self._travelling:
                self._add(self._arrived())
        return self.out

    def _take_offers(self) -> None:
        """Ranks that take turns wait once for all gradients."""
        comm, steps, buffers = self._comm, self.exchange.shard.steps, self.exchange.buffers
        with comm.guard('receiving gradients of own rows', alike=self._words):
            comm.await_offers(Counter(step.send_rank for step in steps), self._words)
        self._add(None)
        for step in steps:
            with taken(step.send_rank, self._words, self._form, step.send_rows, buffers) as came:
                tell_moved(step.part, 'gradients', came, step.recv_rows)
                self.exchange.add(step, self.out, came)

    def _arrived(self) -> tuple[Swap, Step]:
        """Waits for the gradients that have travelled longest; gives them and their step."""
        swap, step = self._travelling.popleft()
        swap.wait()
        swap.sent.free()
        return swap, step

    def _add(self, arrived: tuple[Swap, Step] | None) -> None:
        """Adds gradients that have come to what own blocks give."""
        if self._own is not None:
            self.out, self._own = self._own(), None
        if arrived is not None:
            swap, step = arrived
            self.exchange.add(step, self.out, swap.received.rows)
            swap.received.free()

    def _narrowed(self, filled: Buffers) -> Buffers:
        """Gradients as they travel."""
        narrowed = self._buffers(self._form, filled.rows[0].size(0))
        for sent, rows in zip(narrowed.rows, filled.rows, strict=True):
            sent.copy_(rows)
        filled.free()
        return narrowed
