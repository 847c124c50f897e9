"""The exchange of boundary rows: the only file that moves features between ranks.

Everything is point-to-point and follows the steps of the shard: in every step a rank receives the
rows of one remote part and sends rows of one own part. Receives are posted before sends, and the
next step travels while the current block is computed. There is no barrier and no thread.

Exchanges use a process group of their own, so they can never cross the user's collectives or
DistributedDataParallel's. With one process there is nothing to exchange and no group is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.shard.shard import Shard, Step

_ROWS, _GRADIENTS = 0, 1  # message tags

Rows = list[Tensor]
"""Rows of several tensors at once: one ``[num_rows, ...]`` tensor each."""


def is_distributed() -> bool:
    """Whether this process is one of several (``torch.distributed`` is initialised)."""
    return dist.is_available() and dist.is_initialized()


_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def exchange_group() -> dist.ProcessGroup | None:
    """The group of the exchanges: all ranks, made once beside the default group (collective).

    Returns:
        The group, or None when ``torch.distributed`` is not initialised.
    """
    if not is_distributed():
        return None
    default = dist.group.WORLD
    assert default is not None
    group = _groups.get(default)
    if group is None:
        group = _groups[default] = dist.new_group()
    return group


def raise_together(error: Exception | None) -> None:
    """Raises on every rank if any rank has an error (collective: one small all-gather).

    Args:
        error: What went wrong on this rank, a ValueError or FileNotFoundError, or None.

    Raises:
        ValueError, FileNotFoundError: The own error, or the first other rank's with its rank.
    """
    answer = None if error is None else (isinstance(error, FileNotFoundError), str(error))
    answers = agree(answer)
    if error is not None:
        raise error
    for rank, other in enumerate(answers):
        if other is not None:
            kind = FileNotFoundError if other[0] else ValueError
            raise kind(f'rank {rank}: {other[1]}')


def agree(value: Any) -> list[Any]:
    """The values of all ranks in rank order (collective: one small all-gather)."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=exchange_group())
    return values


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sums `tensor` over the ranks in place (collective) and returns it."""
    if is_distributed():
        dist.all_reduce(tensor, group=exchange_group())
    return tensor


class Exchange:
    """Fetches halo rows of a shard, and returns their gradients to the owners.

    Args:
        shard: The shard of this rank.
        depth: How many steps travel ahead of the block that is computed.

    Raises:
        ValueError: If the shard was loaded for another rank or world size than this process has.
    """

    def __init__(self, shard: Shard, *, depth: int = 1) -> None:
        if depth < 1:
            raise ValueError(f"'depth' must be at least 1 (got {depth})")
        self.group = exchange_group() if shard.world_size > 1 else None
        rank, world_size = 0, 1
        if self.group is not None:
            rank, world_size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if (shard.rank, shard.world_size) != (rank, world_size):
            raise ValueError(
                f'expected a shard of rank {rank} of {world_size}, as this process is '
                f'(got the shard of rank {shard.rank} of {shard.world_size})'
            )
        self.shard = shard
        self.depth = depth

    def fetch(self, tensors: Sequence[Tensor], *, keep: bool = False) -> Iterator[Rows]:
        """The source rows of every block, in the order of the plan's blocks.

        Own blocks come as views; remote ones in buffers that the block after the next reuses.

        Args:
            tensors: Own rows ``[num_own, ...]`` of each tensor that is read across ranks.
            keep: Give every block buffers of its own.

        Yields:
            ``[num_rows, ...]`` of each tensor.
        """
        tensors = [t.contiguous() for t in tensors]
        steps = self.shard.steps
        pending: list[tuple[list[dist.Work], Rows, Rows]] = []
        buffers = _Buffers(tensors, steps, 0 if keep else self.depth + 1)
        started = 0
        for part in self.shard.parts:
            while started < min(self.depth, len(steps)):
                pending.append(self._start(steps[started], tensors, buffers.rows(started)))
                started += 1
            start, end = self.shard.source_range(part)
            yield [t[start:end] for t in tensors]
        for _ in steps:
            works, received, _sent = pending.pop(0)
            _wait(works)
            # Its buffers are free: the block before this one used them last.
            if started < len(steps):
                pending.append(self._start(steps[started], tensors, buffers.rows(started)))
                started += 1
            del works, _sent
            yield received

    def _start(
        self, step: Step, tensors: Sequence[Tensor], received: Rows
    ) -> tuple[list[dist.Work], Rows, Rows]:
        sent = [t.index_select(0, step.send_index) for t in tensors]
        works = _swap(received, step.recv_rank, sent, step.send_rank, self.group, _ROWS)
        return works, received, sent

    def fetch_all(self, tensors: Sequence[Tensor]) -> Rows:
        """All halo rows at once: one all-to-all for each tensor (collective).

        Returns:
            ``[num_halo, ...]`` of each tensor, in the order of the halo.
        """
        if self.group is None:
            return [t[:0] for t in tensors]
        send_index, send_counts, recv_counts = self._all_to_all_plan()
        out = []
        for tensor in tensors:
            received = tensor.new_empty(self.shard.num_halo, *tensor.shape[1:])
            sent = tensor.index_select(0, send_index)
            self._all_to_all(received, recv_counts, sent, send_counts)
            out.append(received)
        return out

    def return_all(self, gradients: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """The adjoint of :meth:`fetch_all`: adds halo gradients to the owners' rows (collective).

        Args:
            gradients: ``[num_halo, ...]`` of each tensor.
            out: ``[num_own, ...]`` of each tensor, changed in place.
        """
        if self.group is None:
            return
        send_index, send_counts, recv_counts = self._all_to_all_plan()
        for gradient, rows in zip(gradients, out, strict=True):
            received = rows.new_empty(send_index.numel(), *rows.shape[1:])
            self._all_to_all(received, send_counts, gradient.contiguous(), recv_counts)
            rows.index_add_(0, send_index, received)

    def _all_to_all_plan(self) -> tuple[Tensor, list[int], list[int]]:
        shard = self.shard
        by_rank: list[list[Tensor]] = [[] for _ in range(shard.world_size)]
        for step in shard.steps:
            by_rank[step.send_rank].append(step.send_index)
        parts_per_rank = shard.parts_per_rank
        halo_ptr = shard.halo_ptr[::parts_per_rank]
        recv_counts = [b - a for a, b in pairwise(halo_ptr)]
        send_counts = [sum(t.numel() for t in lists) for lists in by_rank]
        lists = [t for lists in by_rank for t in lists]
        return torch.cat(lists), send_counts, recv_counts

    def _all_to_all(
        self, received: Tensor, recv_counts: list[int], sent: Tensor, send_counts: list[int]
    ) -> None:
        # As bytes: every dtype goes through every backend.
        row_bytes = received[:1].numel() and received[0].numel() * received.element_size()
        row_bytes = row_bytes or (sent[:1].numel() and sent[0].numel() * sent.element_size())
        dist.all_to_all_single(
            received.view(-1).view(torch.uint8),
            sent.view(-1).view(torch.uint8),
            [n * row_bytes for n in recv_counts],
            [n * row_bytes for n in send_counts],
            group=self.group,
        )


class GradientReturn:
    """The adjoint of :meth:`Exchange.fetch`: sends each block's row gradients to their owner.

    Blocks come in the order of the plan. The gradients of one block travel while the next block is
    computed, and arrive in a fixed order, so sums do not depend on timing.

    Args:
        exchange: The exchange whose adjoint it is.
        out: ``[num_own, ...]`` of each tensor, filled with zeros; gradients are added in place.
    """

    def __init__(self, exchange: Exchange, out: Sequence[Tensor]) -> None:
        self.exchange = exchange
        self.out = list(out)
        self.num_done = 0
        self.pending: tuple[list[dist.Work], Rows, Rows, Tensor] | None = None

    def put(self, gradients: Sequence[Tensor]) -> None:
        """Takes the gradients ``[num_rows, ...]`` of the next block's source rows."""
        shard = self.exchange.shard
        i = self.num_done
        self.num_done += 1
        if i < shard.parts_per_rank:
            start, end = shard.own_ptr[i], shard.own_ptr[i + 1]
            for out, gradient in zip(self.out, gradients, strict=True):
                out[start:end] += gradient
            return
        step = shard.steps[i - shard.parts_per_rank]
        self._finish_pending()
        sent = [g.contiguous() for g in gradients]
        received = [o.new_empty(step.send_index.numel(), *o.shape[1:]) for o in self.out]
        works = _swap(
            received, step.send_rank, sent, step.recv_rank, self.exchange.group, _GRADIENTS
        )
        self.pending = works, received, sent, step.send_index

    def finish(self) -> None:
        """Waits for the last gradients."""
        self._finish_pending()

    def _finish_pending(self) -> None:
        if self.pending is None:
            return
        works, received, _, index = self.pending
        self.pending = None
        _wait(works)
        for out, rows in zip(self.out, received, strict=True):
            out.index_add_(0, index, rows)


class _Buffers:
    """Receive buffers, reused in turn: `count` sets, or fresh ones for ``count == 0``."""

    def __init__(self, tensors: Sequence[Tensor], steps: Sequence[Step], count: int) -> None:
        self.tensors = tensors
        self.steps = steps
        self.sets: list[Rows] = []
        if steps:
            most = max(step.recv_rows for step in steps)
            for _ in range(min(count, len(steps))):
                self.sets.append([t.new_empty(most, *t.shape[1:]) for t in tensors])

    def rows(self, i: int) -> Rows:
        count = self.steps[i].recv_rows
        if self.sets:
            return [t[:count] for t in self.sets[i % len(self.sets)]]
        return [t.new_empty(count, *t.shape[1:]) for t in self.tensors]


def _swap(
    received: Rows, recv_rank: int, sent: Rows, send_rank: int, group: object, tag: int
) -> list[dist.Work]:
    """Starts one step. Both sides know the counts, so empty messages are not sent at all."""
    ops = [
        dist.P2POp(dist.irecv, t, recv_rank, group, tag)  # type: ignore[arg-type]
        for t in received
        if t.numel()
    ]
    ops += [
        dist.P2POp(dist.isend, t, send_rank, group, tag)  # type: ignore[arg-type]
        for t in sent
        if t.numel()
    ]
    return dist.batch_isend_irecv(ops) if ops else []


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
