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
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from pyg_sar.comm.errors import at_location
from pyg_sar.comm.shared_memory import writable
from pyg_sar.shard.index_rows import add_rows_at
from pyg_sar.utils import hook
from pyg_sar.utils.offload import keep_here, select_rows, watcher

_CHUNK_BYTES = 1 << 20

TensorList = list[Tensor]
"""Rows of several tensors at once: one ``[num_rows, ...]`` tensor each."""


class BufferPool:
    """Memory that is lent out and given back, so that steps and layers use the same again."""

    def __init__(self, allocate: Callable[[int, torch.device], Tensor]) -> None:
        self.allocate = allocate
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
            buffer = self.allocate(num_bytes, device)
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

    @classmethod
    def of(cls, rows: TensorList) -> Buffers:
        """Rows in memory of their own."""
        buffers = cls(None, 0, (), 0)
        buffers.rows = rows
        return buffers

    def free(self) -> None:
        """Gives the memory back to the pool."""
        if self.pool is not None:
            self.pool.free += self.lent
        self.lent = []


Lend = Callable[[Sequence[Tensor], int], Buffers]
"""Gives buffers of so many rows like those of some tensors."""

new_buffers: Lend = partial(Buffers, None, 0)
"""Gives new memory."""


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
        copy_all(copies.rows, rows.rows)
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


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies each tensor to one of the same shape, in its dtype and on its device."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def _chunks(num_rows: int, like: Tensor) -> Iterator[slice]:
    """Slices of rows of about 1 MiB each on a CPU, of 64 MiB on other devices."""
    row_bytes = like.element_size() * math.prod(like.shape[1:])
    chunk_bytes = _CHUNK_BYTES if like.device.type == 'cpu' else 64 * _CHUNK_BYTES
    step = max(chunk_bytes // max(row_bytes, 1), 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


class Work(Protocol):
    """A message that is under way."""

    def wait(self) -> Any:
        """Returns once it is done."""


@dataclass(eq=False)
class Transfer:
    """A step of an exchange: rows go to one rank while others come from another one.

    Both sides know the counts, so empty messages are not sent. Packing fills the rows that go, in
    the form in which they travel. Ranks that are threads pack once the other rank reads the rows.
    """

    kind: str  # ``'rows'``, ``'keys'`` of attention, or ``'gradients of rows'`` or of keys
    words: str  # what it is, in which layer, in words that are equal on both sides
    form: TensorList  # tensors with rows of the shapes and dtypes in which they travel
    lend: Lend  # gives memory for the rows that come
    lend_sent: Lend  # gives memory for those that go
    part: int  # whose rows, or gradients of rows, these are
    to: tuple[int, int]  # the rank that rows go to, and how many
    of: tuple[int, int]  # the rank that rows come from, and how many
    pack: Callable[[TensorList], None] | None = None  # fills the rows that go
    read: Sequence[Tensor] = ()  # what it reads
    sent: Buffers | None = None  # what goes, once it is packed
    # Of a step of processes that is under way: what comes; the messages that come in, then those
    # that go out; how many come in; what is done once these are here; and the `operations`.
    received: Buffers = field(init=False)
    works: list[Work] = field(default_factory=list)
    num_coming: int = 0
    unpack: Callable[[], None] | None = None
    doing: tuple[tuple[str, int], tuple[str, int]] = field(init=False)

    def packed(self) -> Buffers:
        """What goes, packed now."""
        assert self.pack is not None
        self.sent = self.lend_sent(self.form, self.to[1])
        self.pack(self.sent.rows)
        return self.sent

    def operations(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """What it does, in words, and the rank it is done with: for what comes, for what goes."""
        kind, of_rows = self.kind, self.kind.removeprefix('gradients of ')
        if kind == of_rows:
            words = (
                f'receiving the {kind} of part {self.part}',
                f'sending {kind} to rank {self.to[0]}',
            )
        else:
            goes = f'sending the gradients of the {of_rows} of part {self.part}'
            words = f'receiving gradients of own {of_rows}', goes
        return (words[0], self.of[0]), (words[1], self.to[0])

    def tell(self, received: Buffers) -> None:
        """Tells watchers of rows that came, and of those that went."""
        came, num_sent = received.rows, self.to[1]
        widths = [math.prod(t.shape[1:]) * t.element_size() for t in came]
        num_came = sum(t.size(0) for t in came)
        moved = num_came, num_sent * len(came), sum(t.nbytes for t in came), num_sent * sum(widths)
        hook.moved(hook.Transfer(f'part {self.part}', self.kind, *moved))


def copy_run(run: Tensor, out: TensorList) -> None:
    """Copies contiguous rows, which may be away, to the only tensor of `out`."""
    watch = watcher.value
    if watch is None or not watch.reads_run(out[0], run):
        out[0].copy_(run)


def words_of(kind: str, form: Sequence[Tensor]) -> str:
    """What a step is, and where, by which rows of another layer, or width, are told from these."""
    forms = ' and '.join(f'rows of {t.dtype} {tuple(t.shape[1:])}' for t in form)
    return at_location(f'a step of {kind} ({forms})')
