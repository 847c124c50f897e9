"""Exchanges of ranks that take turns: the reader packs the rows that it reads.

All wait once for an exchange, before the first block: then it is one turn of each rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from pyg_sar.comm.buffers import Buffers, Lend, Rows
from pyg_sar.comm.errors import at_location
from pyg_sar.comm.exchange import Exchange, GradientReturn
from pyg_sar.comm.ranks import current
from pyg_sar.comm.swap import forms_of, tell_moved
from pyg_sar.shard.shard import Step
from pyg_sar.utils import hook

if TYPE_CHECKING:
    from pyg_sar.comm.threads import ThreadComm


class OfferedGradients(GradientReturn):
    """Gradients in memory of their own, which the other rank takes in its turn."""

    def __init__(self, exchange: Exchange, out: Sequence[Tensor], **kwargs: Any) -> None:
        super().__init__(exchange, out, **kwargs)
        self._lend = partial(Buffers, None, 0)
        self._words = at_location(f'a return of {forms_of(self._form)}')

    def takes_over(self, make: Callable[[Rows], None], read: Rows) -> bool:  # noqa: D102
        step = next(self._steps)

        def narrowed(targets: Rows) -> None:
            wide = Buffers(None, 0, self.out, step.recv_rows).rows
            make(wide)
            for target, rows in zip(targets, wide, strict=True):
                target.copy_(rows)

        is_narrow = [t.dtype for t in self._form] != [t.dtype for t in self.out]
        like = _like(self._form, step.recv_rows)
        _comm().offer(step.recv_rank, self._words, like, narrowed if is_narrow else make, read)
        return True

    def finish(self) -> Rows:  # noqa: D102
        if not self.out:
            return super().finish()
        steps = self.exchange.shard.steps
        with _comm().guard('receiving gradients of own rows', alike=self._words):
            _comm().await_offers(Counter(step.send_rank for step in steps), self._words)
        self._add_own()
        for step in steps:
            lend = self.exchange.buffers
            came = _taken(step.send_rank, self._words, self._form, step.send_rows, lend)
            if hook.watchers:
                tell_moved(step.part, 'gradients', came.rows, step.recv_rows)
            self._add(step, came)
        return self.out

    def _start(self, step: Step, sent: Buffers) -> None:
        _comm().offer(step.recv_rank, self._words, sent.rows)


class OfferedRows(Exchange):
    """Rows that are packed when they are read."""

    def fetch(self, tensors: Sequence[Tensor], *, keep: bool = False) -> Iterator[Rows]:  # noqa: D102
        tensors, steps = [t.contiguous() for t in tensors], self.shard.steps
        form = self.wire.like(tensors)
        lend: Lend = partial(Buffers, None, 0) if keep else self.buffers
        words = at_location(f'an exchange of {forms_of(form)}')
        with _comm().guard('receiving rows', alike=words):
            for step in steps:
                make, like = partial(self.pack, step, tensors), _like(form, step.send_rows)
                _comm().offer(step.send_rank, words, like, make, tensors)
            _comm().await_offers(Counter(step.recv_rank for step in steps), words)
        for part in self.shard.parts:
            first, end = self.shard.source_range(part)
            yield [t[first:end] for t in tensors]
        for step in steps:
            came = _taken(step.recv_rank, words, form, step.recv_rows, lend)
            if hook.watchers:
                tell_moved(step.part, 'rows', came.rows, step.send_rows)
            rows = self.wire.recast(came, tensors, lend)
            yield rows.rows
            rows.free()

    def way_back(  # noqa: D102
        self, out: Sequence[Tensor], *, own: Callable[[], Rows] | None = None
    ) -> GradientReturn:
        return OfferedGradients(self, out, own=own)


def _comm() -> ThreadComm:
    return cast('ThreadComm', current())


def _like(form: Rows, num_rows: int) -> Rows:
    """Shapes and dtypes of rows, without memory."""
    return [t.new_empty(1).expand(num_rows, *t.shape[1:]) for t in form]


def _taken(rank: int, words: str, form: Rows, num_rows: int, lend: Lend) -> Buffers:
    """Rows that a rank has offered: computed into a buffer, or in memory of their own already."""
    lent: list[Buffers] = []

    def lend_rows() -> Rows:
        lent.append(lend(form, num_rows))
        return lent[0].rows

    rows = _comm().take(rank, words, lend_rows)
    if not lent:
        lent.append(Buffers(None, 0, (), 0))
        lent[0].rows = rows
    return lent[0]
