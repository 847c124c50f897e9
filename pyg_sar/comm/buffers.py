"""Memory for the rows that travel, used again in every step and every layer.

The C library keeps what is freed in pieces: buffers allocated and freed for every block take a
third more memory than the buffers themselves (measured).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyg_sar.evictable import keep_here

Rows = list[Tensor]
"""Rows of several tensors at once: one ``[num_rows, ...]`` tensor each."""


class BufferPool:
    """Memory that is lent out and given back, so that steps and layers use the same again."""

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
            buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            keep_here(buffer)
            return buffer


class Buffers:
    """One tensor of `num_rows` rows like each of `tensors`, from a pool or of their own.

    Attributes:
        rows: ``[num_rows, ...]`` like each of `tensors`.
    """

    def __init__(
        self, pool: BufferPool | None, most_rows: int, tensors: Sequence[Tensor], num_rows: int
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
        """Gives the memory back to the pool."""
        if self.pool is not None:
            self.pool.free += self.lent
        self.lent = []
