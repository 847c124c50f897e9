"""Rows that travel: memory for them, used again in every step and layer, and their form.

The C library keeps freed memory in pieces: buffers allocated and freed for every block take a third
more memory than the buffers themselves (measured).

Rows travel as they are, or rounded to a narrower floating-point type. Rounding is the only
approximation of this library, and off unless asked for. It happens where rows leave for another
rank and is undone where they arrive: own rows are never rounded, and sums are made in the dtype of
the tensor. Rows are rounded in chunks that stay in the cache, so it takes no memory besides the
narrow rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pyg_sar.comm.ranks import current
from pyg_sar.comm.shared_memory import writable
from pyg_sar.shard.index_rows import add_rows_at
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

    def __init__(self, dtype: torch.dtype | None = None) -> None:
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
