"""Rows that travel: memory for them, their form, and a step of an exchange.

Memory is used again in every step and layer. The C library keeps freed memory in pieces: buffers
that are allocated and freed for every block take a third more memory (measured).

Rows travel as they are, or rounded to a narrower floating-point type. Rounding is the only
approximation of this library, and off unless asked for. It happens where rows leave for another
rank and is undone where they arrive: own rows are never rounded, and sums are made in the dtype of
the tensor. Rows are rounded in chunks that stay in the cache, so it takes no memory besides the
narrow rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_to_all
from pyg_sar.comm.errors import at_location
from pyg_sar.comm.ranks import current
from pyg_sar.comm.shared_memory import writable
from pyg_sar.shard.index_rows import add_rows_at
from pyg_sar.utils import hook
from pyg_sar.utils.offload import keep_here, select_rows

_CHUNK_BYTES = 1 << 20

TensorList = list[Tensor]
"""Rows of several tensors at once: one ``[num_rows, ...]`` tensor each."""


class BufferPool:
    """Memory that is lent out and given back, so that steps and layers use the same again."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []

    def take(self, num_bytes: int, device: torch.device) -> Tensor:
        """A uint8 vector of at least `num_bytes`."""
        here = writable(t for t in self.free if t.device == device)
        fitting = [t for t in here if t.numel() >= num_bytes]
        if fitting:
            best = min(fitting, key=Tensor.numel)
            self.free = [t for t in self.free if t is not best]
            return best
        # A buffer that is too small is of no more use: sizes only grow.
        small = next(iter(here), None)
        self.free = [t for t in self.free if t is not small]
        del small, here
        with torch.inference_mode(False):  # it outlives the caller's mode
            buffer = current().allocate(num_bytes, device)
            keep_here(buffer)
            return buffer


class Buffers:
    """Tensors `rows` of `num_rows` rows like those of `tensors`, from a pool or in new memory."""

    def __init__(
        self, pool: BufferPool | None, most_rows: int, tensors: Sequence[Tensor], num_rows: int
    ) -> None:
        self.pool = pool
        self.lent: list[Tensor] = []
        self.rows: TensorList = []
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
        """Gives the memory back to the pool."""
        if self.pool is not None:
            self.pool.free += self.lent
        self.lent = []


Lend = Callable[[Sequence[Tensor], int], Buffers]
"""Gives buffers of so many rows like those of some tensors."""


class Wire:
    """Packs rows for the way and unpacks them; wider floats are rounded to `dtype`, if given."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype

    def like(self, tensors: Sequence[Tensor]) -> TensorList:
        """Tensors with rows of the shapes and dtypes in which rows of `tensors` travel."""
        dtype = self.dtype
        if dtype is None:
            return list(tensors)
        return [
            t.new_empty((0, *t.shape[1:]), dtype=dtype)
            if t.is_floating_point() and t.element_size() > dtype.itemsize
            else t
            for t in tensors
        ]

    def recast(self, rows: Buffers, like: Sequence[Tensor], lend: Lend) -> Buffers:
        """Rows in the dtypes of `like`: as they are, or copies, and then they are freed."""
        if self.dtype is None or [t.dtype for t in rows.rows] == [t.dtype for t in like]:
            return rows
        copies = lend(like, rows.rows[0].size(0))
        for copy, came in zip(copies.rows, rows.rows, strict=True):
            copy.copy_(came)
        rows.free()
        return copies

    def pack(self, out: Tensor, tensor: Tensor, index: Tensor) -> None:
        """Copies rows of a tensor into `out`, in the dtype in which they travel."""
        if out.dtype == tensor.dtype:
            select_rows(out, tensor, index)
            return
        for chunk in _chunks(index.numel(), tensor):
            out[chunk] = tensor.index_select(0, index[chunk])

    def add(self, out: Tensor, index: Tensor, rows: Tensor) -> None:
        """Adds received rows to rows `index` of `out`, in the dtype of `out`."""
        if rows.dtype == out.dtype:
            add_rows_at(out, index, rows)
            return
        for chunk in _chunks(rows.size(0), out):
            add_rows_at(out, index[chunk], rows[chunk].to(out.dtype))


def _chunks(num_rows: int, like: Tensor) -> Iterator[slice]:
    """Slices of rows of about 1 MiB each on a CPU, of 64 MiB on other devices."""
    row_bytes = like.element_size() * math.prod(like.shape[1:])
    chunk_bytes = _CHUNK_BYTES if like.device.type == 'cpu' else 64 * _CHUNK_BYTES
    step = max(chunk_bytes // max(row_bytes, 1), 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


ROWS_TAG, GRADIENTS_TAG = 0, 1


class SendRecv:
    """One step under way; both sides know the counts, so empty messages are not sent.

    What is `received` is complete after :meth:`wait`. `works` are the transfers that come in, then
    those that go out.
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
        self.sent.free()
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
