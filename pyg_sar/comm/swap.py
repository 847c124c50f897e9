"""One step of an exchange: rows come from one rank while others go to another."""

from __future__ import annotations

from pyg_sar.comm import transport
from pyg_sar.comm.buffers import Buffers
from pyg_sar.comm.faults.errors import placed
from pyg_sar.comm.faults.guarded import connected, exchange_group, guard
from pyg_sar.comm.faults.program_check import code_of, form_of
from pyg_sar.monitor import hook

ROWS_TAG, GRADIENTS_TAG = 0, 1


class Swap:
    """One step under way; both sides know the counts, so empty messages are not sent.

    Attributes:
        received: The rows that come in; complete after :meth:`wait`.
    """

    def __init__(
        self,
        received: Buffers,
        recv_rank: int,
        sent: Buffers,
        send_rank: int,
        part: int,
        tag: int,
    ) -> None:
        self.received, self._sent = received, sent
        self._kind = 'rows' if tag == ROWS_TAG else 'gradients'
        self._ranks, self._part = (recv_rank, send_rank), part
        receives = [t for t in received.rows if t.numel()]
        sends = [t for t in sent.rows if t.numel()]
        self._num_receives = len(receives)
        forms = ' and '.join(form_of(t, is_rows=True) for t in sent.rows)
        # Rows of another layer, or of another width, must not be taken for these.
        words = f'a step of {self._kind} ({forms})'
        with guard(*self._operation(0), alike=words):
            self.works = transport.start_swap(
                receives, recv_rank, sends, send_rank, code_of(placed(words)), exchange_group()
            )
        connected().travelling.add(self)

    def wait(self) -> None:
        """Returns once both ways are done.

        Raises:
            ExchangeError: If the other rank has ended or is silent.
        """
        for i in range(len(self.works)):
            with guard(*self._operation(i), is_wait=True):
                self.works[i].wait()  # a work that this frame held would keep connections open
        connected().travelling.discard(self)
        connected().check('the end of a transfer')  # nothing has arrived if the group has ended
        if hook.watchers:
            came, went = self.received.rows, self._sent.rows
            hook.moved(
                hook.Transfer(
                    f'part {self._part}',
                    self._kind,
                    sum(t.size(0) for t in came),
                    sum(t.size(0) for t in went),
                    sum(t.nbytes for t in came),
                    sum(t.nbytes for t in went),
                )
            )

    def _operation(self, i: int) -> tuple[str, int]:
        """What the transfer number i does, and with which rank."""
        comes = i < self._num_receives
        rank = self._ranks[not comes]
        of_part = f'of part {self._part}'
        if self._kind == 'rows':
            return (
                f'receiving the rows {of_part}' if comes else f'sending rows to rank {rank}',
                rank,
            )
        own = 'receiving gradients of own rows'
        return own if comes else f'sending the gradients of the rows {of_part}', rank

    def free_sent(self) -> None:
        """Gives back the memory of the rows that went out."""
        self._sent.free()
