"""One step of an exchange: rows come from one rank while others go to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from pyg_sar.comm.buffers import Buffers, TensorList
from pyg_sar.comm.collectives import all_to_all
from pyg_sar.comm.errors import at_location
from pyg_sar.comm.ranks import current
from pyg_sar.utils import hook

ROWS_TAG, GRADIENTS_TAG = 0, 1


class SendRecv:
    """One step under way; both sides know the counts, so empty messages are not sent.

    Attributes:
        received: The rows that come in; complete after :meth:`wait`.
        sent: The rows that go out.
        works: The transfers: those that come in, then those that go out.
    """

    def __init__(
        self, received: Buffers, recv_rank: int, sent: Buffers, send_rank: int, part: int, tag: int
    ) -> None:
        self.received, self.sent = received, sent
        self._comm, self._part = current(), part
        self._kind = 'rows' if tag == ROWS_TAG else 'gradients'
        comes, goes = f'receiving the rows of part {part}', f'sending rows to rank {send_rank}'
        if tag == GRADIENTS_TAG:
            comes = 'receiving gradients of own rows'
            goes = f'sending the gradients of the rows of part {part}'
        receives = [t for t in received.rows if t.numel()]
        sends = [t for t in sent.rows if t.numel()]
        operations = (comes, recv_rank), (goes, send_rank)
        # Rows of another layer, or of another width, must not be taken for these.
        words = f'a step of {self._kind} ({forms_of(sent.rows)})'
        with self._comm.guard(*operations[not receives], tag=words):
            words = at_location(words)
            come, go = self._comm.start_send_recv(receives, recv_rank, sends, send_rank, words)
        self.works = [*come, *go]
        self._operations = [operations[0]] * len(come) + [operations[1]] * len(go)
        self._comm.travelling.add(self)

    def wait(self) -> None:
        """Returns once both ways are done.

        Raises ExchangeError if the other rank has ended or is silent.
        """
        comm = self._comm
        if self.works:
            with comm.guard(*self._operations[0], is_wait=True):
                for i in range(len(self.works)):
                    if i and self._operations[i] != self._operations[i - 1]:
                        comm.operation, comm.peer = self._operations[i]
                    self.works[i].wait()  # a work that this frame held would keep connections open
        comm.travelling.discard(self)
        comm.check('the end of a transfer')  # nothing has arrived if the group has ended
        if hook.watchers:
            tell_moved(self._part, self._kind, self.received.rows, self.sent.rows[0].size(0))


class _Round(SendRecv):
    """A step in which whole blocks of rows go round; they are no halo."""


def start_round(
    rows: Tensor, turn: int, counts: Sequence[int], tag: int = ROWS_TAG
) -> Callable[[], Tensor]:
    """Begins to send rows to the next rank; returns a wait for those of the rank before.

    Every rank has begun with `counts` rows of its own, and this is turn 1, 2, ... of their round.
    Ranks that are threads of one process send and receive in the wait.
    """
    comm = current()
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    source = (comm.rank - turn) % comm.size
    if comm.size == 1:
        return lambda: rows
    if comm.takes_turns:
        going, coming = [0] * comm.size, [0] * comm.size
        going[after], coming[before] = rows.size(0), counts[source]
        return partial(all_to_all, rows, going, coming)
    sent, received = Buffers(None, 0, [], 0), Buffers(None, 0, [rows], counts[source])
    sent.rows = [rows.contiguous()]
    send_recv = _Round(received, before, sent, after, source, tag)

    def wait() -> Tensor:
        send_recv.wait()
        return received.rows[0]

    return wait


def tell_moved(part: int, kind: str, came: TensorList, num_sent: int) -> None:
    """Tells watchers of rows that came, and of `num_sent` rows of their kind that went."""
    widths = [math.prod(t.shape[1:]) * t.element_size() for t in came]
    num_came = sum(t.size(0) for t in came)
    moved = num_came, num_sent * len(came), sum(t.nbytes for t in came), num_sent * sum(widths)
    hook.moved(hook.Transfer(f'part {part}', kind, *moved))


def forms_of(rows: TensorList) -> str:
    """Dtypes and widths of rows, in words that are equal on all ranks."""
    return ' and '.join(f'rows of {t.dtype} {tuple(t.shape[1:])}' for t in rows)
