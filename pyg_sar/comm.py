"""The exchange of boundary rows: the only file that moves features between ranks.

Everything is point-to-point and follows the steps of the shard: in every step a rank receives the
rows of one remote part and sends rows of one own part. Receives are posted before sends, and the
next step travels while the current block is computed. There is no barrier and no thread.

Exchanges use a process group of their own, so they can never cross the user's collectives or
DistributedDataParallel's. With one process there is nothing to exchange and no group is needed.
"""

from __future__ import annotations

import math
from collections import deque
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


def check_equal(what: str, own: object, values: Sequence[object]) -> None:
    """Raises a ValueError if the ranks' `values` of something differ from this rank's own."""
    for rank, value in enumerate(values):
        if value != own:
            raise ValueError(
                f'expected the same {what} on all ranks: {own} on rank {dist.get_rank()} '
                f'(got {value} on rank {rank})'
            )


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
        self._pool: _BufferPool = shard.cache.setdefault('buffers', _BufferPool())
        self._most_rows = max(
            (n for s in shard.steps for n in (s.recv_rows, s.send_index.numel())), default=0
        )

    def buffers(self, tensors: Sequence[Tensor], num_rows: int) -> _Buffers:
        """Reused memory for `num_rows` rows like those of each of `tensors`."""
        return _Buffers(self._pool, tensors, num_rows, self._most_rows)

    def fetch(self, tensors: Sequence[Tensor], *, keep: bool = False) -> Iterator[Rows]:
        """The source rows of every block, in the order of the plan's blocks.

        Own blocks come as views; remote ones in buffers that are used again once the next block is
        asked for.

        Args:
            tensors: Own rows ``[num_own, ...]`` of each tensor that is read across ranks.
            keep: Give every block memory of its own.

        Yields:
            ``[num_rows, ...]`` of each tensor.
        """
        tensors = [t.contiguous() for t in tensors]
        steps = deque(self.shard.steps)
        pool = None if keep else self._pool
        travelling: deque[_Swap] = deque()

        def start_next() -> None:
            if steps:
                travelling.append(self._start_fetch(steps.popleft(), tensors, pool))

        for part in self.shard.parts:
            while steps and len(travelling) < self.depth:
                start_next()
            start, end = self.shard.source_range(part)
            yield [t[start:end] for t in tensors]
        while travelling:
            swap = travelling.popleft()
            swap.wait()
            swap.free_sent()
            start_next()
            yield swap.received
            swap.free_received()

    def _start_fetch(self, step: Step, tensors: Rows, pool: _BufferPool | None) -> _Swap:
        sent = _Buffers(pool, tensors, step.send_index.numel(), self._most_rows)
        received = _Buffers(pool, tensors, step.recv_rows, self._most_rows)
        for rows, tensor in zip(sent.rows, tensors, strict=True):
            torch.index_select(tensor, 0, step.send_index, out=rows)
        return _Swap(received, step.recv_rank, sent, step.send_rank, self.group, _ROWS)

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

    Blocks come in the order of the plan: fill :meth:`rows`, then :meth:`send`. The gradients of one
    block travel while the next block is computed, and are added in a fixed order, so sums do not
    depend on timing.

    Args:
        exchange: The exchange whose adjoint it is.
        out: ``[num_own, ...]`` of each tensor, filled with zeros; gradients are added in place.
    """

    def __init__(self, exchange: Exchange, out: Sequence[Tensor]) -> None:
        self.exchange = exchange
        self.out = list(out)
        self._next = 0
        self._filled: _Buffers | None = None
        self._travelling: tuple[_Swap, Tensor] | None = None

    def rows(self) -> Rows:
        """Where the gradients ``[num_rows, ...]`` of the next block's source rows are to be put.

        For an own block views into `out`, zero so far; for a remote one a buffer of any content.
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
        step = self._step()
        self._next += 1
        if step is None:
            return
        self._add_arrived()
        assert self._filled is not None
        received = self.exchange.buffers(self.out, step.send_index.numel())
        swap = _Swap(
            received,
            step.send_rank,
            self._filled,
            step.recv_rank,
            self.exchange.group,
            _GRADIENTS,
        )
        self._travelling = swap, step.send_index

    def put(self, gradients: Sequence[Tensor]) -> None:
        """Copies gradients into :meth:`rows` and sends them."""
        for rows, gradient in zip(self.rows(), gradients, strict=True):
            rows.copy_(gradient)
        self.send()

    def finish(self) -> None:
        """Waits for the last gradients."""
        self._add_arrived()

    def _step(self) -> Step | None:
        shard = self.exchange.shard
        if self._next < shard.parts_per_rank:
            return None
        return shard.steps[self._next - shard.parts_per_rank]

    def _add_arrived(self) -> None:
        if self._travelling is None:
            return
        swap, index = self._travelling
        self._travelling = None
        swap.wait()
        swap.free_sent()
        for out, rows in zip(self.out, swap.received, strict=True):
            out.index_add_(0, index, rows)
        swap.free_received()


class _BufferPool:
    """Memory that is lent out and given back, so that steps and layers use the same again.

    The C library keeps what is freed in pieces; allocating and freeing buffers of all sizes for
    every block takes a third more memory than the buffers themselves (measured).
    """

    def __init__(self) -> None:
        self.free: list[Tensor] = []

    def take(self, num_bytes: int, device: torch.device) -> Tensor:
        """A uint8 vector of at least `num_bytes`."""
        fitting = [t for t in self.free if t.numel() >= num_bytes and t.device == device]
        if fitting:
            best = min(fitting, key=Tensor.numel)
            self.free = [t for t in self.free if t is not best]
            return best
        # One that is too small will not be asked for again: sizes only grow from here.
        small = next((t for t in self.free if t.device == device), None)
        self.free = [t for t in self.free if t is not small]
        del small
        with torch.inference_mode(False):  # it outlives the caller's mode
            return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def give(self, buffer: Tensor) -> None:
        self.free.append(buffer)


class _Buffers:
    """One tensor of `num_rows` rows like each of `tensors`, from a pool or of their own.

    Attributes:
        rows: ``[num_rows, ...]`` like each of `tensors`.
    """

    def __init__(
        self, pool: _BufferPool | None, tensors: Sequence[Tensor], num_rows: int, most_rows: int
    ) -> None:
        self.pool = pool
        self.lent: list[Tensor] = []
        self.rows: Rows = []
        for tensor in tensors:
            shape = (num_rows, *tensor.shape[1:])
            if pool is None or num_rows == 0:
                self.rows.append(tensor.new_empty(shape))
                continue
            row_bytes = math.prod(shape[1:]) * tensor.element_size()
            # Room for the largest block: then every step can use every buffer.
            buffer = pool.take(most_rows * row_bytes, tensor.device)
            self.lent.append(buffer)
            self.rows.append(buffer[: num_rows * row_bytes].view(tensor.dtype).view(shape))

    def free(self) -> None:
        for buffer in self.lent:
            assert self.pool is not None
            self.pool.give(buffer)
        self.lent = []


class _Swap:
    """One step under way: rows come from one rank and go to another.

    Both sides know the counts, so empty messages are not sent at all.
    """

    def __init__(
        self,
        received: _Buffers,
        recv_rank: int,
        sent: _Buffers,
        send_rank: int,
        group: dist.ProcessGroup | None,
        tag: int,
    ) -> None:
        self._received, self._sent = received, sent
        receives = [
            dist.P2POp(dist.irecv, t, recv_rank, group, tag) for t in received.rows if t.numel()
        ]
        sends = [dist.P2POp(dist.isend, t, send_rank, group, tag) for t in sent.rows if t.numel()]
        # A send completes early only if the receive is posted already.
        ops = [*receives, *sends]
        self.works: list[dist.Work] = dist.batch_isend_irecv(ops) if ops else []

    @property
    def received(self) -> Rows:
        return self._received.rows

    def wait(self) -> None:
        for work in self.works:
            work.wait()

    def free_sent(self) -> None:
        self._sent.free()

    def free_received(self) -> None:
        self._received.free()
