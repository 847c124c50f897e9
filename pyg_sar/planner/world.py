"""A world of equal ranks of which only one exists.

Rank 0 of P runs the real code while every other rank is thought to hold the same shard, shifted: so
what rank r sends to rank 0 is what rank 0 itself sends to rank -r. That answers every exchange with
tensors of the right sizes and sensible values, in one process and without a process group. The
rehearsal knows :func:`equal_ranks` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.monitor import Counts, Meter, hook


@contextmanager
def equal_ranks(num_ranks: int) -> Iterator[Counts]:
    """While it lasts, pyg_sar takes this thread for rank 0 of `num_ranks` equal ones.

    Yields:
        The rows and bytes that rank 0 has received so far.
    """
    counts = Counts()
    meter = Meter(counts)
    with ExitStack() as stack:
        if num_ranks > 1:
            stack.enter_context(transport.inside(_EqualRanks(num_ranks)))
        hook.add(meter)
        stack.callback(hook.remove, meter)
        yield counts


class _EqualRanks(transport.World):
    rank = 0

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def sum_alike(
        self, operation: str, alike: str = '', *, number: int = 0, state: str = ''
    ) -> int | None:
        return number * self.size

    def start_swap(
        self,
        received: Sequence[Tensor],
        recv_rank: int,
        sent: Sequence[Tensor],
        send_rank: int,
        tag: int,
    ) -> list[transport.Work]:
        """In one step as many rows come from rank -s as go to rank +s."""
        for come, to in zip(received, sent, strict=True):
            come.copy_(to)
        return []

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        """What comes from rank r is what goes to rank -r."""
        parts = torch.split(sent, send_sizes)
        for rank, place in enumerate(torch.split(received, recv_sizes)):
            place.copy_(parts[-rank % self.size])

    def all_reduce(self, tensor: Tensor) -> None:
        tensor *= self.size

    def all_gather(self, own: Tensor) -> Tensor:
        return torch.stack([own] * self.size)

    def broadcast(self, tensor: Tensor) -> None:
        pass
