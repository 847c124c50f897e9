"""Counts what a rank sends and receives: messages, rows and bytes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.ranks import current
from pyg_sar.comm.send_recv import Transfer, Wire
from pyg_sar.comm.shared_memory import SharedMemory


@dataclass
class Traffic:
    """What a rank sent and received."""

    receives: list[tuple[int, int]] = field(default_factory=list)  # a message: the rank, its rows
    sends: list[tuple[int, int]] = field(default_factory=list)
    all_to_alls: int = 0  # exchanges with all ranks at once
    others: int = 0  # other collectives
    bytes_sent: int = 0


def apart() -> AbstractContextManager[Any]:
    """While it lasts, rows go by messages, as between machines."""
    return mock.patch.object(current(), '_shared', SharedMemory(), create=True)


@contextmanager
def counted() -> Iterator[Traffic]:
    """Counts while it lasts."""
    traffic = Traffic()
    batch, all_to_all = dist.batch_isend_irecv, dist.all_to_all_single

    def count_batch(ops: list[dist.P2POp]) -> Any:
        for op in ops:
            is_sent = op.op is dist.isend
            (traffic.sends if is_sent else traffic.receives).append((op.peer, op.tensor.size(0)))
            traffic.bytes_sent += op.tensor.nbytes * is_sent
        return batch(ops)

    def count_all_to_all(
        received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int], **kwargs: Any
    ) -> Any:
        traffic.all_to_alls += 1
        others = sum(send_sizes) - send_sizes[dist.get_rank()]
        traffic.bytes_sent += others * sent.element_size()
        return all_to_all(received, sent, recv_sizes, send_sizes, **kwargs)

    def other(name: str) -> Any:
        function = getattr(dist, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            traffic.others += 1
            return function(*args, **kwargs)

        return mock.patch.object(dist, name, count)

    with (
        apart(),
        mock.patch.object(dist, 'batch_isend_irecv', count_batch),
        mock.patch.object(dist, 'all_to_all_single', count_all_to_all),
        other('all_reduce'),
        other('all_gather'),
        other('broadcast'),
    ):
        yield traffic


@dataclass
class Order:
    """Events in the order they happened.

    Attributes:
        events: ``'start rows 0'``: rows of step 0 travel from now on; ``'wait gradients 1'``;
            ``'pack'``: rows to send are put together; ``'add'``: gradients that came are added;
            and what :meth:`note` is called with.
        ops: For every batch of messages its operations, ``'irecv'`` and ``'isend'``.
    """

    events: list[str] = field(default_factory=list)
    ops: list[list[str]] = field(default_factory=list)

    def note(self, event: str) -> None:
        """Something else happens now."""
        self.events.append(event)


@contextmanager
def recorded() -> Iterator[Order]:
    """Records the order of what the exchange does while it lasts."""
    order = Order()
    batch, start = dist.batch_isend_irecv, GroupComm.start
    names: dict[Transfer, str] = {}
    numbers = {'rows': 0, 'gradients': 0}

    def note_batch(ops: list[dist.P2POp]) -> Any:
        order.ops.append([op.op.__name__ for op in ops])
        return batch(ops)

    def note_start(self: GroupComm, transfer: Transfer) -> None:
        kind = transfer.kind.split()[0]
        names[transfer] = f'{kind} {numbers[kind]}'
        numbers[kind] += 1
        order.note(f'start {names[transfer]}')
        start(self, transfer)

    def noted(owner: type, name: str, event: Callable[..., str]) -> Any:
        function = getattr(owner, name)

        def note(*args: Any) -> Any:
            order.note(event(*args))
            return function(*args)

        return mock.patch.object(owner, name, note)

    with (
        apart(),
        mock.patch.object(dist, 'batch_isend_irecv', note_batch),
        mock.patch.object(GroupComm, 'start', note_start),
        noted(GroupComm, 'finish', lambda comm, transfer: f'wait {names[transfer]}'),
        noted(Wire, 'pack', lambda *args: 'pack'),
        noted(Wire, 'add', lambda *args: 'add'),
    ):
        yield order


def give_back(
    exchange: Exchange, out: list[Tensor], gradients: Iterable[Sequence[Tensor]]
) -> list[Tensor]:
    """Returns the gradients of every block's rows to their owners, which add them to `out`."""
    for of_block, targets in exchange.reduce_scatter_halo(out, iter(gradients)):
        for rows, gradient in zip(targets, of_block, strict=True):
            rows.copy_(gradient)
    return out
