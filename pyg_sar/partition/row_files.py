"""Passes over tensors of any size by chunks, each of ordinary memory and a bounded size.

Chunks grow with the tensor, as the memory for them shall be a small part of its own: to a 128th of
it, but between the bounds below. Fewer rows take more time than they save memory, more save none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.mapped import Scratch, is_mapped, release

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


SHARE = 128

CHUNK_ROWS, _MOST_ROWS = 1 << 14, 1 << 17
"""Edges, or node ids, per chunk."""

CHUNK_BYTES, _MOST_BYTES = 1 << 19, 1 << 23
"""Bytes per chunk of rows, and span of a mapped tensor that rows are picked from at a time."""

_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
UNSIGNED = tuple(_AS_SIGNED)
"""Types that torch hardly computes with."""


@dataclass(frozen=True)
class RowStream:
    """Rows of a tensor that are never in memory as a whole.

    Attributes:
        values: ``[N, ...]``, dense or sparse COO; in memory or mapped.
        index: Integer [n]: which rows, all by default; where it ascends, least is read.
        dtype: What they are saved as; that of `values` by default.
    """

    values: Tensor
    index: Tensor | None = None
    dtype: torch.dtype | None = None

    def chunks(self) -> Iterator[Tensor]:
        """The rows in order, in dense tensors of ordinary memory, of the type of `values`."""
        return chunks(self.values) if self.index is None else self._picked(self.index)

    def _picked(self, index: Tensor) -> Iterator[Tensor]:
        values = self.values
        if values.dtype in _AS_SIGNED:  # types that torch stores, but picks no rows of
            values = values.view(_AS_SIGNED[values.dtype])
        num_rows = _rows_per_chunk(values)
        for part in torch.split(index, num_rows) if index.numel() else ():
            ids = aligned(part).to(torch.int64)
            if values.layout is not torch.strided:
                yield values.index_select(0, ids).to_dense()
            elif is_mapped(values):
                yield _take_mapped(values, ids, num_rows)
            else:
                yield values.index_select(0, ids)
            release(part)


def ranges(count: int) -> Iterator[tuple[int, int]]:
    """First and last of chunks of so many edges or ids."""
    size = max(CHUNK_ROWS, min(count // SHARE, _MOST_ROWS))
    return ((start, min(start + size, count)) for start in range(0, count, size))


def chunks(values: Tensor) -> Iterator[Tensor]:
    """The rows of a dense tensor [N, ...] in order, contiguous; memory is given back after each."""
    for rows in torch.split(values, _rows_per_chunk(values)):
        yield aligned(rows).contiguous()
        release(rows)


def smallest_and_largest(ids: Tensor) -> tuple[int, int]:
    """The smallest and the largest of integers [N], at least one."""
    parts = (p.to(torch.int64) if p.dtype in _AS_SIGNED else p for p in chunks(ids))
    bounds = [part.aminmax() for part in parts]
    return min(int(low) for low, _ in bounds), max(int(high) for _, high in bounds)


def edge_chunks(edge_index: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Edges [2, E] of any integer type: number of the first, sources and destinations, int64."""
    for start, stop in ranges(edge_index.size(1)):
        edges = edge_index[:, start:stop]
        src, dst = (aligned(ids).to(torch.int64) for ids in edges)
        yield start, src, dst
        release(*edges)  # row by row: what lies between them belongs to neither


def join_edges(
    pairs: Iterable[tuple[Tensor, Tensor]],
    most: int,
    scratch: Scratch,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Chunks of sources and destinations in a row, [2, E] in scratch space, E at most `most`."""
    joined, end = scratch.empty((2, most), dtype), 0
    for src, dst in pairs:
        target = joined[:, end : end + src.numel()]
        target[0], target[1] = src, dst
        release(*target)
        end += src.numel()
    return joined[:, :end]


def count_into(counts: Tensor, index: Tensor) -> None:
    """Adds to `counts` how often every entry occurs in `index`."""
    counts.index_add_(0, index, counts.new_ones(1).expand(index.numel()))


def _take_mapped(values: Tensor, ids: Tensor, num_rows: int) -> Tensor:
    """As index_select; touches at most `num_rows` consecutive rows of a file at a time."""
    ids, order = ids.sort()
    taken = torch.empty((ids.numel(), *values.shape[1:]), dtype=values.dtype)
    blocks, counts = torch.unique_consecutive(ids // num_rows, return_counts=True)
    sizes = counts.tolist()
    picked = zip(torch.split(ids, sizes), torch.split(order, sizes), strict=True)
    for block, (wanted, positions) in zip(blocks.tolist(), picked, strict=True):
        rows = values[block * num_rows : (block + 1) * num_rows]
        taken[positions] = aligned(rows).index_select(0, wanted - block * num_rows)
        release(rows)
    return taken


def aligned(values: Tensor) -> Tensor:
    """`values` at an address that torch may compute with: copied from an odd one of an archive."""
    if values.data_ptr() % values.element_size() == 0:
        return values
    return torch.from_numpy(np.array(values.numpy()))


def _rows_per_chunk(values: Tensor) -> int:
    row = max(1, values.element_size() * math.prod(values.shape[1:]))
    num_bytes = max(CHUNK_BYTES, min(values.size(0) * row // SHARE, _MOST_BYTES))
    return max(1, min(num_bytes // row, max(8 * CHUNK_ROWS, _MOST_BYTES // 8)))
