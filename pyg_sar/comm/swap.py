"""One step of an exchange: rows come from one rank while others go to another."""

from __future__ import annotations

import torch.distributed as dist

from pyg_sar.comm.buffers import Buffers

ROWS_TAG, GRADIENTS_TAG = 0, 1


class Swap:
    """One step under way: rows come from one rank and go to another.

    Both sides know the counts, so empty messages are not sent at all.

    Attributes:
        received: The rows that come in; complete after :meth:`wait`.
    """

    def __init__(
        self,
        received: Buffers,
        recv_rank: int,
        sent: Buffers,
        send_rank: int,
        group: dist.ProcessGroup | None,
        tag: int,
    ) -> None:
        self.received, self._sent = received, sent
        receives = [
            dist.P2POp(dist.irecv, t, recv_rank, group, tag) for t in received.rows if t.numel()
        ]
        sends = [dist.P2POp(dist.isend, t, send_rank, group, tag) for t in sent.rows if t.numel()]
        # A send completes early only if the receive is posted already.
        ops = [*receives, *sends]
        self.works: list[dist.Work] = dist.batch_isend_irecv(ops) if ops else []

    def wait(self) -> None:
        """Returns once both ways are done."""
        for work in self.works:
            work.wait()

    def free_sent(self) -> None:
        """Gives back the memory of the rows that went out."""
        self._sent.free()
