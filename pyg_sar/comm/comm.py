"""Operations of a rank with the others, whoever carries the messages.

There are three kinds: the process group of ``torch.distributed``
(:mod:`pyg_sar.comm.process_group`), ranks that are threads of one process
(:mod:`pyg_sar.comm.threads`), and one rank by itself, which is the base class here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.errors import at_location
from pyg_sar.comm.plain_values import Met
from pyg_sar.comm.send_recv import Buffers, Transfer
from pyg_sar.utils import hook


class Comm:
    """One rank by itself: sums over all ranks are its own numbers.

    The methods from :meth:`vote` on are called within a :meth:`guard`. Those that communicate
    are collective.
    """

    rank, size = 0, 1
    group: dist.ProcessGroup | None = None  # of the exchanges, if there is one
    takes_turns = False  # whether the ranks are threads of one process
    run: object = None  # what ranks that are threads of one run have in common
    small_bytes = 0  # what `sum_small` takes at most

    def __init__(self) -> None:
        # Gives the default process group that it belongs to, while that lives.
        self.world: Callable[[], dist.ProcessGroup | None] = lambda: None
        self._process = os.getpid()
        self.operation = ''  # that this rank has come to last, in words
        self.peer: int | None = None  # the rank it is done with; None for all
        self.met = Met()  # the plain values that have met rows since the last message
        self.travelling: set[Transfer] = set()
        self.caches: dict[Any, Any] = {}  # what `ranks.cache_of` gives, by name
        self.num_made = 0  # how many things all ranks have made together, as `Agreed` counts

    def check(self, operation: str) -> None:
        """Raises ExchangeError if the exchanges have ended; connects the ranks if they are not."""

    def guard(
        self, operation: str, peer: int | None = None, *, tag: str = '', is_wait: bool = False
    ) -> AbstractContextManager[None]:
        """For the time of an operation with other ranks: its errors come as ExchangeError.

        `peer` is the rank it is done with, None for all. Threads compare `tag`: the operation,
        with what it moves, in words that are equal on all ranks.
        `is_wait`: the end of one that began before; all ranks begin as many.
        """
        if not self.is_here():
            self.refuse_process(operation)
        self.operation = at_location(operation)
        return hook.in_operation(operation, peer, is_wait) if hook.watchers else nullcontext()

    def is_here(self) -> bool:
        """Whether this is the process of the rank, or it needs no others."""
        return self.size == 1 or self._process == os.getpid()

    def refuse_process(self, operation: str) -> NoReturn:
        """Raises a ValueError in a process that a rank has forked, which other ranks do not see."""
        raise ValueError(
            f'{operation} in a worker of a DataLoader, or another process that a rank has forked, '
            'asks ranks elsewhere: write num_workers=0, or give it plain tensors of pyg_sar.local '
            'or pyg_sar.gather'
        )

    def left_by(self, error: BaseException) -> None:
        """Takes note of an exception that leaves a layer, a model or the backward of a layer.

        If it is this rank's alone, the others would wait for it: their exchanges end.
        """

    def fail(self, error: BaseException) -> None:
        """Ends the exchanges because of an exception of this rank's own."""

    def set_timeout(self, timeout: timedelta | None) -> None:
        """How long the ranks wait for a silent one from now on; None leaves it as it is."""

    def connect_devices(self, device: torch.device) -> None:
        """Has all ranks connect their devices, where a backend needs it (at the first call)."""

    def goes_by_host(self, device: torch.device, group: dist.ProcessGroup | None = None) -> bool:
        """Whether gloo carries tensors of a device, by way of the host; then ranks may share a GPU.

        `group` is one of all ranks; None for that of the exchanges.
        """
        return True

    def vote(self, tag: str, bits: Sequence[bool] = (), fingerprint: str = '') -> list[int] | None:
        """How many ranks have set each of a few bits, or None if their fingerprints differ.

        `tag` is the operation at which all must be, in words that are equal on all ranks; else
        all raise. The `fingerprint` is what the ranks ask whether they have it in common, in words.
        """
        return [int(bit) for bit in bits]

    def sum_small(self, tag: str, tensor: Tensor, bit: bool = False) -> int:
        """Sums a tensor of :attr:`small_bytes` at most in place; `tag` is that of `vote`.

        Returns how many ranks have set the bit.
        """
        return int(bit)

    def sum_large(self, tag: str, tensor: Tensor) -> None:
        """Sums a tensor of the host over the ranks in place; `tag` is that of `vote`."""
        self.vote(tag)
        self.all_reduce(tensor)

    def gather_texts(self, text: bytes, what: str) -> list[bytes]:
        """The texts of all ranks, perhaps with spaces at the end; `what` is the operation."""
        return [text]

    def allocate(self, num_bytes: int, device: torch.device) -> Tensor:
        """Memory for rows that travel: a uint8 vector, of any content."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def start(self, transfer: Transfer) -> None:
        """Begins a step of an exchange; what goes is packed, or will be."""
        raise NotImplementedError

    def finish(self, transfer: Transfer) -> Buffers:
        """What a step has received, once both of its ways are done.

        Raises ExchangeError if the other rank has ended or is silent.
        """
        raise NotImplementedError

    def in_order(self, transfers: Sequence[Transfer]) -> Iterator[Buffers | None]:
        """None once the first step is under way; then what each has received, while the next is."""
        before = None
        for transfer in (*transfers, None):
            if transfer is not None:
                transfer.packed()  # while the one before is still on its way
            received = None if before is None else self.finish(before)
            if transfer is not None:
                self.start(transfer)
            yield received
            before, received = transfer, None

    def await_sent(self, transfers: Sequence[Transfer]) -> None:
        """Returns once nobody needs another turn before these steps are done."""

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        """Sends runs of a vector to rank 0, 1, ...; what comes from them fills another one."""
        received.copy_(sent)

    def all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Sums a tensor over the ranks in place, perhaps by another group of all ranks."""

    def all_gather(self, own: Tensor) -> Tensor:
        """The tensors of all ranks, of one shape, ``[size, ...]``."""
        return own.unsqueeze(0)

    def broadcast(self, tensor: Tensor) -> None:
        """Gives all ranks what rank 0 has in a contiguous tensor."""
