"""The exchange of boundary rows: there the rows, and back their gradients.

Messages are point to point and follow the steps of the shard. The next rows are packed and travel
while the current block is computed. No rank waits for all others.

Exchanges use a process group of their own, so they never meet the collectives of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import current
from pyg_sar.comm.row_map import RowMap
from pyg_sar.comm.send_recv import (
    BufferPool,
    Buffers,
    Lend,
    TensorList,
    Transfer,
    Wire,
    copy_all,
    copy_run,
    new_buffers,
    words_of,
)
from pyg_sar.shard.shard import Cached, Shard, Step

Item = TypeVar('Item')

_POOL: Cached[BufferPool] = Cached()
_of_runs: WeakKeyDictionary[Any, BufferPool] = WeakKeyDictionary()  # one thread runs at a time
_EXCHANGES: Cached[dict[tuple[Comm, torch.dtype | None], Exchange]] = Cached()
_SOURCE_IDS: Cached[Tensor] = Cached()


class Exchange:
    """Fetches halo rows of this rank's shard, and returns their gradients to the owners.

    One step travels ahead of the block that is computed. Wider floating-point rows and their
    gradients are rounded to `dtype` while they travel; None sends them as they are.
    """

    def __init__(self, shard: Shard, dtype: torch.dtype | None = None) -> None:
        self.comm = comm = current()
        rank, world_size = 0, 1
        if shard.world_size > 1:
            comm.connect_devices(shard.steps[0].send_index.device)
            rank, world_size = comm.rank, comm.size
        if (shard.rank, shard.world_size) != (rank, world_size):
            raise ValueError(
                f'expected a shard of rank {rank} of {world_size}, as this process is '
                f'(got the shard of rank {shard.rank} of {shard.world_size})'
            )
        self.shard = shard
        self.wire = Wire(dtype)
        pool = _POOL.of(shard, partial(BufferPool, comm.allocate))
        if comm.run is not None:
            pool = _POOL.put(shard, _of_runs.setdefault(comm.run, pool))
        most = max((max(s.recv_rows, s.send_rows) for s in shard.steps), default=0)
        # Memory for rows like those of some tensors, which is used again.
        self.buffers: Lend = partial(Buffers, pool, most)

    def all_gather_halo(
        self, tensors: Sequence[Tensor], *, keep: bool = False
    ) -> Iterator[TensorList]:
        """The source rows ``[num_rows, ...]`` of every block, in the order of the plan's blocks.

        Own blocks of the tensors ``[num_own, ...]`` come as views; remote ones in buffers that are
        used again once the next block is asked for, or with `keep` in memory of their own.
        """
        tensors = [t.contiguous() for t in tensors]
        form = self.wire.like(tensors)
        lend = new_buffers if keep else self.buffers
        new = partial(
            Transfer, 'rows', words_of('rows', form), form, lend, self.buffers, read=tensors
        )
        transfers = [
            new(
                part=step.part,
                to=(step.send_rank, step.send_rows),
                of=(step.recv_rank, step.recv_rows),
                pack=partial(self._pack, step, tensors),
            )
            for step in self.shard.steps
        ]
        for arrived in self.comm.in_order(transfers):
            if arrived is None:
                for first, end in pairwise(self.shard.own_ptr):
                    yield [t[first:end] for t in tensors]
            else:
                rows = self.wire.recast(arrived, tensors, lend)
                yield rows.rows
                rows.free()

    def reduce_scatter_halo(
        self,
        out: TensorList,
        beside: Iterator[Item],
        own: Callable[[], TensorList] | None = None,
        packs: Sequence[Callable[[TensorList], None]] | None = None,
        read: Sequence[Tensor] = (),
    ) -> Iterator[tuple[Item, TensorList]]:
        """The adjoint of :meth:`all_gather_halo`: sends gradients of halo rows to their owners.

        Yields memory for the gradients ``[num_rows, ...]`` of every block's source rows in turn,
        which the caller fills: views of `out` for own blocks, buffers for remote ones. With it
        comes the next item of `beside`, which is taken once the gradients before are on their way.
        The gradients of one block travel while the next block is computed. They are added in the
        order of the steps once the next have been sent, so sums do not depend on timing.

        Gradients of other ranks are added to `out`, ``[num_own, ...]`` of each tensor: zeros, or of
        any content where all own blocks are written. `own` computes the gradients of the own
        blocks, once the first messages are on their way. These replace `out`, which then tells only
        shapes and dtypes; own blocks are skipped. With `packs`, one for every remote block, these
        fill the gradients from the tensors `read`, where ranks are threads once the owner takes
        them; remote blocks are skipped.
        """
        comm, form, kind = self.comm, self.wire.like(out), 'gradients of rows'
        new = partial(Transfer, kind, words_of(kind, form), form, self.buffers, self.buffers)
        waits = comm.takes_turns  # for the other rank's turn, in memory of its own
        lend = new_buffers if waits else self.buffers
        under_way: list[tuple[Step, Transfer]] = []
        if own is None:
            for first, end in pairwise(self.shard.own_ptr):
                yield next(beside), [o[first:end] for o in out]
        for number, step in enumerate(self.shard.steps):
            if packs is None:
                item = next(beside)
                filled = lend(out, step.recv_rows)
                yield item, filled.rows
                packed: dict[str, Any] = {'sent': self.wire.recast(filled, form, lend)}
            else:
                packed = {'pack': partial(self._fill, out, packs[number]), 'read': read}
            transfer = new(
                part=step.part,
                to=(step.recv_rank, step.recv_rows),
                of=(step.send_rank, step.send_rows),
                **packed,
            )
            if packs is not None and not waits:
                transfer.packed()  # while the one before is still on its way
            came = None
            if under_way and not waits:
                before, travelling = under_way.pop()
                came = comm.finish(travelling)
            comm.start(transfer)
            under_way.append((step, transfer))
            if own is not None and not waits:  # while the gradients of this block are on their way
                out[:], own = own(), None
            if came is not None:
                self._add(before, came, out)
        next(beside, None)  # its end frees what it holds
        comm.await_sent([transfer for _, transfer in under_way])
        if own is not None:
            out[:] = own()
        for step, transfer in under_way:
            self._add(step, comm.finish(transfer), out)

    def _pack(self, step: Step, tensors: TensorList, out: TensorList) -> None:
        """Puts the own rows that a step sends, and sums of them, into `out` as they travel."""
        num_rows = step.send_index.numel()
        for rows, tensor in zip(out, tensors, strict=True):
            self.wire.pack(rows[:num_rows], tensor, step.send_index)
            if step.sums is not None:
                step.sums.put(rows[num_rows:], tensor)

    def _add(self, step: Step, gradients: Buffers, out: TensorList) -> None:
        """Adds gradients that have come, of the rows that a step has sent, to those of own rows."""
        num_rows = step.send_index.numel()
        for own, came in zip(out, gradients.rows, strict=True):
            self.wire.add(own, step.send_index, came[:num_rows])
            if step.sums is not None:
                step.sums.add(own, came[num_rows:])
        gradients.free()

    def _fill(self, like: TensorList, make: Callable[[TensorList], None], out: TensorList) -> None:
        """Has `make` fill gradients in the dtypes of `like`; `out` gets them as they travel."""
        if [t.dtype for t in out] == [t.dtype for t in like]:
            make(out)
            return
        wide = self.buffers(like, out[0].size(0))
        make(wide.rows)
        copy_all(out, wide.rows)
        wide.free()

    def fetch(self, tensors: Sequence[Tensor], row_map: RowMap | None = None) -> TensorList:
        """All halo rows at once, or those of a row map: one all-to-all for each tensor."""
        if self.shard.world_size == 1:
            return [tensor[:0] for tensor in tensors]
        return [(row_map or self.halo).fetch(tensor, self.wire) for tensor in tensors]

    def give_back(
        self, gradients: Sequence[Tensor], out: Sequence[Tensor], row_map: RowMap | None = None
    ) -> None:
        """The adjoint of :meth:`fetch`: adds gradients of halo rows to own rows of `out`."""
        if self.shard.world_size > 1:
            for gradient, rows in zip(gradients, out, strict=True):
                (row_map or self.halo).give_back(gradient, rows, self.wire)

    def parts(self, halo: Sequence[Tensor]) -> list[RowMap]:
        """Row maps that fetch some halo rows each, see :meth:`RowMap.parts`."""
        alone = self.shard.world_size == 1
        return [self.halo] * len(halo) if alone else self.halo.parts(halo)

    @cached_property
    @torch.inference_mode(False)  # it outlives the caller's mode
    def halo(self) -> RowMap:
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


def exchange_of(shard: Shard, dtype: torch.dtype | None = None) -> Exchange:
    """The exchange of a shard, kept with it; see Exchange.

    A `dtype` rounds rows that messages read. Degrees and other numbers of the whole graph are never
    rounded.
    """
    exchanges, key = _EXCHANGES.of(shard, dict), (current(), dtype)
    if key not in exchanges:
        exchanges[key] = Exchange(shard, dtype=dtype)
    return exchanges[key]


def lent_to_another(shard: Shard) -> dict[Cached[Any], Any]:
    """Entries for a shard that is derived from this one: exchanges of both share buffers."""
    return {_POOL: _POOL.of(shard, partial(BufferPool, current().allocate))}


def with_halo_ids(shard: Shard, ids: Tensor) -> Tensor:
    """The ids of own sources, then those of the halo's (collective: an all-to-all, once)."""
    found = _SOURCE_IDS.of(shard, lambda: torch.cat([ids, *exchange_of(shard).fetch([ids])]))
    return _SOURCE_IDS.put(shard, found.to(ids.device))


def start_round(
    rows: Tensor, turn: int, counts: Sequence[int], kind: str = 'keys'
) -> Callable[[], Tensor]:
    """Begins to send rows to the next rank; returns a wait for those of the rank before.

    Every rank has begun with `counts` rows of its own, and this is turn 1, 2, ... of their round.
    """
    comm, rows = current(), rows.contiguous()
    if comm.size == 1:
        return lambda: rows
    source = (comm.rank - turn) % comm.size
    to, of = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    round_ = Transfer(
        *(kind, words_of(kind, [rows]), [rows], new_buffers, new_buffers, source),
        to=(to, rows.size(0)),
        of=(of, counts[source]),
        pack=partial(copy_run, rows),
        read=[rows],
        sent=None if comm.takes_turns else Buffers.of([rows]),
    )
    comm.start(round_)
    return lambda: comm.finish(round_).rows[0]
