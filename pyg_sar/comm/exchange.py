"""The exchange of boundary rows: there the rows, and back their gradients.

Messages are point to point and follow the steps of the shard. The next rows are packed and travel
while the current block is computed. No rank waits for all others.

Exchanges use a process group of their own, so they never meet the collectives of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.ranks import current
from pyg_sar.comm.row_map import RowMap
from pyg_sar.comm.send_recv import (
    GRADIENTS_TAG,
    ROWS_TAG,
    BufferPool,
    Buffers,
    Lend,
    SendRecv,
    TensorList,
    Wire,
)
from pyg_sar.shard.shard import Cached, Shard, Step

_POOL: Cached[BufferPool] = Cached()
_EXCHANGES: Cached[dict[tuple[type[Exchange], torch.dtype | None], Exchange]] = Cached()
_SOURCE_IDS: Cached[Tensor] = Cached()


class Exchange:
    """Fetches halo rows of this rank's shard, and returns their gradients to the owners.

    One step travels ahead of the block that is computed. Wider floating-point rows and their
    gradients are rounded to `dtype` while they travel; None sends them as they are.
    """

    def __init__(self, shard: Shard, dtype: torch.dtype | None = None) -> None:
        rank, world_size = 0, 1
        if shard.world_size > 1:
            comm = current()
            comm.connect_devices(shard.steps[0].send_index.device)
            rank, world_size = comm.rank, comm.size
        if (shard.rank, shard.world_size) != (rank, world_size):
            raise ValueError(
                f'expected a shard of rank {rank} of {world_size}, as this process is '
                f'(got the shard of rank {shard.rank} of {shard.world_size})'
            )
        self.shard = shard
        self.wire = Wire(dtype)
        pool = _POOL.put(shard, self._pool())
        most = max((max(s.recv_rows, s.send_rows) for s in shard.steps), default=0)
        # Memory for rows like those of some tensors, which is used again.
        self.buffers: Lend = partial(Buffers, pool, most)

    def _pool(self) -> BufferPool:
        return _POOL.of(self.shard, BufferPool)

    def all_gather_halo(
        self, tensors: Sequence[Tensor], *, keep: bool = False
    ) -> Iterator[TensorList]:
        """The source rows ``[num_rows, ...]`` of every block, in the order of the plan's blocks.

        Own blocks of the tensors ``[num_own, ...]`` come as views; remote ones in buffers that are
        used again once the next block is asked for, or with `keep` in memory of their own.
        """
        tensors = [t.contiguous() for t in tensors]
        form = self.wire.like(tensors)
        lend: Lend = partial(Buffers, None, 0) if keep else self.buffers
        travelling: SendRecv | None = None
        for step in (*self.shard.steps, None):
            if step is not None:  # while the rows of the block before are still on their way
                sent = self.buffers(form, step.send_rows)
                self.pack(step, tensors, sent.rows)
            arrived = None
            if travelling is not None:
                travelling.wait()
                arrived = travelling.received
            travelling = None
            if step is not None:
                received = lend(form, step.recv_rows)
                ranks = step.recv_rank, sent, step.send_rank
                travelling = SendRecv(received, *ranks, step.part, ROWS_TAG)
            if arrived is not None:
                rows = self.wire.recast(arrived, tensors, lend)
                yield rows.rows
                rows.free()
            else:
                for part in self.shard.parts:
                    first, end = self.shard.source_ranges[part]
                    yield [t[first:end] for t in tensors]

    def way_back(
        self, out: Sequence[Tensor], own: Callable[[], TensorList] | None
    ) -> GradientReturn:
        """Begins the adjoint of :meth:`fetch`; see GradientReturn."""
        return GradientReturn(self, out, own=own)

    def pack(self, step: Step, tensors: TensorList, out: TensorList) -> None:
        """Puts the own rows that a step sends, and sums of them, into `out` as they travel."""
        num_rows = step.send_index.numel()
        for rows, tensor in zip(out, tensors, strict=True):
            self.wire.pack(rows[:num_rows], tensor, step.send_index)
            if step.sums is not None:
                step.sums.put(rows[num_rows:], tensor)

    def add(self, step: Step, out: TensorList, gradients: TensorList) -> None:
        """Adds gradients of the rows that a step has sent to those of own rows."""
        num_rows = step.send_index.numel()
        for own, came in zip(out, gradients, strict=True):
            self.wire.add(own, step.send_index, came[:num_rows])
            if step.sums is not None:
                step.sums.add(own, came[num_rows:])

    def fetch_all(self, tensors: Sequence[Tensor]) -> TensorList:
        """All halo rows ``[num_halo, ...]`` at once: an all-to-all for each tensor (collective)."""
        return self.fetch_requested(tensors, self._everything)

    def return_all(self, gradients: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """The adjoint of :meth:`fetch_all`: adds gradients ``[num_halo, ...]`` to rows of `out`."""
        self.return_requested(gradients, out, self._everything)

    def request(self, halo: Sequence[Tensor]) -> list[RowMap]:
        """Tells the owners which halo rows will be fetched together (collective: two all-to-alls).

        `halo` has ascending halo rows for every fetch, int64; as many fetches on all ranks.
        """
        everything = self._everything
        return everything.parts(halo) if self.shard.world_size > 1 else [everything] * len(halo)

    def fetch_requested(self, tensors: Sequence[Tensor], request: RowMap) -> TensorList:
        """The halo rows of a request: one all-to-all for each tensor (collective)."""
        if self.shard.world_size == 1:
            return [tensor[:0] for tensor in tensors]
        return [request.fetch(tensor, self.wire) for tensor in tensors]

    def return_requested(
        self, gradients: Sequence[Tensor], out: Sequence[Tensor], request: RowMap
    ) -> None:
        """The adjoint of :meth:`fetch_requested`: adds to the owners' rows (collective)."""
        if self.shard.world_size > 1:
            for gradient, rows in zip(gradients, out, strict=True):
                request.give_back(gradient, rows, self.wire)

    @cached_property
    @torch.inference_mode(False)  # it outlives the caller's mode
    def _everything(self) -> RowMap:
        """All halo rows, in the order of the halo."""
        shard = self.shard
        if shard.world_size == 1:
            return RowMap(torch.empty(0, dtype=torch.int64), [0], [0])
        steps = sorted(shard.steps, key=lambda step: step.send_rank)
        send_counts = [0] * shard.world_size
        for step in steps:
            send_counts[step.send_rank] += step.send_index.numel()
        halo_ptr = shard.halo_ptr[:: shard.parts_per_rank]
        recv_counts = [end - start for start, end in pairwise(halo_ptr)]
        return RowMap(torch.cat([step.send_index for step in steps]), send_counts, recv_counts)


class GradientReturn:
    """The adjoint of :meth:`Exchange.all_gather_halo`: sends row gradients to their owner.

    Blocks come in the order of the plan: fill :meth:`rows`, then :meth:`send`. The gradients of one
    block travel while the next block is computed. They are added in the order of the steps once the
    next have been sent, so sums do not depend on timing.

    Gradients of other ranks are added to `out`, ``[num_own, ...]`` of each tensor: zeros, or of any
    content where all own blocks are written. `own` computes the gradients of the own blocks, once
    the first messages are on their way. These replace `out`, which then tells only shapes and
    dtypes; own blocks are skipped.
    """

    def __init__(
        self,
        exchange: Exchange,
        out: Sequence[Tensor],
        *,
        own: Callable[[], TensorList] | None = None,
    ) -> None:
        self.exchange, self.out, self._own = exchange, list(out), own
        self._form = exchange.wire.like(self.out)
        self._lend: Lend = exchange.buffers
        shard = exchange.shard
        self._own_blocks = iter(range(shard.parts_per_rank if own is None else 0))
        self._steps = iter(shard.steps)
        self._filled: tuple[Step, Buffers] | None = None
        self._travelling: list[tuple[SendRecv, Step]] = []  # one at most

    def rows(self) -> TensorList:
        """Memory for the gradients ``[num_rows, ...]`` of the next block's source rows.

        For an own block views into `out`; for a remote one a buffer of any content.
        """
        block = next(self._own_blocks, None)
        if block is not None:
            start, end = self.exchange.shard.own_ptr[block : block + 2]
            return [o[start:end] for o in self.out]
        step = next(self._steps)
        self._filled = step, self._lend(self.out, step.recv_rows)
        return self._filled[1].rows

    def takes_over(self, make: Callable[[TensorList], None], read: TensorList) -> bool:
        """Whether the next block's owner computes the gradients from `read`; else do it here."""
        return False

    def send(self) -> None:
        """Sends the gradients in :meth:`rows`."""
        if self._filled is not None:
            (step, filled), self._filled = self._filled, None
            self._start(step, self.exchange.wire.recast(filled, self._form, self._lend))

    def finish(self) -> TensorList:
        """Waits for the last gradients; returns the sums, :attr:`out`."""
        self._add_own()  # on a rank that has sent nothing
        if self._travelling:
            self._add(*self._arrived())
        return self.out

    def _start(self, step: Step, sent: Buffers) -> None:
        arrived = self._arrived() if self._travelling else None
        received = self._lend(self._form, step.send_rows)
        send_recv = SendRecv(
            received, step.send_rank, sent, step.recv_rank, step.part, GRADIENTS_TAG
        )
        self._travelling.append((send_recv, step))
        self._add_own()  # while the gradients of this block are on their way
        if arrived is not None:
            self._add(*arrived)

    def _arrived(self) -> tuple[Step, Buffers]:
        """The gradients that travel, once they are here, and their step."""
        send_recv, step = self._travelling.pop()
        send_recv.wait()
        return step, send_recv.received

    def _add_own(self) -> None:
        if self._own is not None:
            self.out, self._own = self._own(), None

    def _add(self, step: Step, gradients: Buffers) -> None:
        self.exchange.add(step, self.out, gradients.rows)
        gradients.free()


def exchange_of(shard: Shard, dtype: torch.dtype | None = None) -> Exchange:
    """The exchange of a shard, kept with it, of the comm's kind; see Exchange.

    A `dtype` rounds rows that messages read. Degrees and other numbers of the whole graph are never
    rounded.
    """
    kind: type[Exchange] = current().exchange_kind or Exchange
    exchanges = _EXCHANGES.of(shard, dict)
    if (kind, dtype) not in exchanges:
        exchanges[kind, dtype] = kind(shard, dtype=dtype)
    return exchanges[kind, dtype]


def lent_to_another(shard: Shard) -> dict[Cached[Any], Any]:
    """Entries for a shard that is derived from this one: exchanges of both share buffers."""
    return {_POOL: _POOL.of(shard, BufferPool)}


def with_halo_ids(shard: Shard, ids: Tensor) -> Tensor:
    """The ids of own sources, then those of the halo's (collective: an all-to-all, once)."""
    found = _SOURCE_IDS.of(shard, lambda: torch.cat([ids, *exchange_of(shard).fetch_all([ids])]))
    return _SOURCE_IDS.put(shard, found.to(ids.device))
