"""Tensors and arrays in files: sources, scratch space, and the shards that are written.

Everything computes with them as with any other, by chunks, and the page cache has of them what
there is room for. A source's file is mapped copy on write: writes stay in this process. Chunks grow
with the tensor, to a 128th of it, but between the bounds below.

A shard is a file of torch.save, which leaves space for the numbers: a shared map of the file is
then filled by chunks. So the zip archive has no checksums of the numbers, which torch does not
read.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.unsigned import AS_SIGNED, signed

Array = np.ndarray[Any, Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
IndexArray = npt.NDArray[Any]
"""int32 or int64."""

IN_MEMORY = 1 << 20
"""Bytes up to which scratch space is ordinary memory."""


@dataclass(frozen=True)
class Scratch:
    """Space for temporary arrays, of which nothing is left when the process ends in any way.

    Its files in `folder` have no name. A full disk is an OSError as they are made, and no write
    fails later. Arrays of few bytes, and all without a folder, are in memory.
    """

    folder: Path | None = None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor with arbitrary content."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self.folder is None or num_bytes <= IN_MEMORY:
            return torch.empty(shape, dtype=dtype)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            content = mmap.mmap(file.fileno(), num_bytes)
        return torch.frombuffer(content, dtype=dtype).view(*shape)


MEMORY = Scratch()


def tensor_of(array: Array) -> Tensor | None:
    """An array as a tensor, in place where that can be; None of what torch has no numbers for."""
    if array.dtype.kind not in 'biufc':
        return None
    array = np.require(array, array.dtype.newbyteorder('='), 'W')
    if any(step < 0 or step % array.itemsize for step in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # of numbers such as np.longdouble
        return None


INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


SHARE = 128
CHUNK_ROWS, _MOST_ROWS = 1 << 14, 1 << 17
"""Edges, or node ids, per chunk."""

CHUNK_BYTES, _MOST_BYTES = 1 << 19, 1 << 23
"""Bytes per chunk of rows."""

UNSIGNED = tuple(AS_SIGNED)
"""Types that torch hardly computes with."""


@dataclass(frozen=True)
class RowStream:
    """Rows of a tensor that are never in memory as a whole."""

    values: Tensor  # ``[N, ...]``, dense or sparse COO; in memory or mapped
    index: Tensor | None = None  # integer [n]: which rows, all by default; in any order
    dtype: torch.dtype | None = None  # what they are saved as; that of `values` by default

    def chunks(self) -> Iterator[Tensor]:
        """The rows in order, in dense tensors of ordinary memory, of the type of `values`."""
        return chunks(self.values) if self.index is None else self._picked(self.index)

    def _picked(self, index: Tensor) -> Iterator[Tensor]:
        values = signed(self.values)
        num_rows = _rows_per_chunk(values)
        for part in torch.split(index, num_rows) if index.numel() else ():
            ids = aligned(part).to(torch.int64)
            if values.layout is not torch.strided:
                yield values.index_select(0, ids).to_dense()
            elif _is_aligned(values):
                yield values.index_select(0, ids)
            else:
                yield torch.from_numpy(values.numpy()[ids.numpy()])


def ranges(count: int) -> Iterator[tuple[int, int]]:
    """First and last of chunks of so many edges or ids."""
    size = max(CHUNK_ROWS, min(count // SHARE, _MOST_ROWS))
    return ((start, min(start + size, count)) for start in range(0, count, size))


def chunks(values: Tensor) -> Iterator[Tensor]:
    """The rows of a dense tensor [N, ...] in order, contiguous."""
    return (aligned(rows).contiguous() for rows in torch.split(values, _rows_per_chunk(values)))


def smallest_and_largest(ids: Tensor) -> tuple[int, int]:
    """The smallest and the largest of integers [N], at least one."""
    parts = (p.to(torch.int64) if p.dtype in AS_SIGNED else p for p in chunks(ids))
    bounds = [part.aminmax() for part in parts]
    return min(int(low) for low, _ in bounds), max(int(high) for _, high in bounds)


def edge_chunks(edge_index: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Edges [2, E] of any integer type: number of the first, sources and destinations, int64."""
    for start, stop in ranges(edge_index.size(1)):
        src, dst = (aligned(ids).to(torch.int64) for ids in edge_index[:, start:stop])
        yield start, src, dst


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
        end += src.numel()
    return joined[:, :end]


def count_into(counts: Tensor, index: Tensor) -> None:
    """Adds to `counts` how often every entry occurs in `index`."""
    counts.index_add_(0, index, counts.new_ones(1).expand(index.numel()))


def aligned(values: Tensor) -> Tensor:
    """`values` at an address that torch may compute with: copied from an odd one of an archive."""
    return values if _is_aligned(values) else torch.from_numpy(np.array(values.numpy()))


def _is_aligned(values: Tensor) -> bool:
    return values.data_ptr() % values.element_size() == 0


def _rows_per_chunk(values: Tensor) -> int:
    row = max(1, values.element_size() * math.prod(values.shape[1:]))
    num_bytes = max(CHUNK_BYTES, min(values.size(0) * row // SHARE, _MOST_BYTES))
    return max(1, min(num_bytes // row, max(8 * CHUNK_ROWS, _MOST_BYTES // 8)))


def save_rows(content: object, path: Path) -> None:
    """Writes dicts of dense tensors [N, ...], RowStreams and plain values as torch.load reads them.

    Each tensor has its own space in the file. The folder is made if need be.
    """
    path.parent.mkdir(exist_ok=True)
    streams = _tensors(content)
    try:
        with path.open('wb') as file:
            with torch.serialization.skip_data():
                torch.save(in_nested(content, _stand_in), file)
            # A full disk is an error now, and no signal when the map is filled.
            if hasattr(os, 'posix_fallocate'):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, file.tell())
    except OSError as error:  # reported without the file's name
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        spaces = _tensors(torch.load(path, weights_only=True, mmap=True))
    for stream, space in zip(streams, spaces, strict=True):
        if space.numel():
            _fill(space, stream.chunks() if isinstance(stream, RowStream) else chunks(stream))


def _fill(space: Tensor, parts: Iterable[Tensor]) -> None:
    start = 0
    for part in parts:
        space[start : start + part.size(0)] = part
        start += part.size(0)


def _tensors(content: object) -> list[Any]:
    return [value for value in leaves(content) if isinstance(value, (Tensor, RowStream))]


def _stand_in(value: object) -> object:
    """A tensor of the right size, whose memory is never touched, for a tensor or RowStream."""
    if isinstance(value, RowStream):
        count = value.values.size(0) if value.index is None else value.index.numel()
        shape = (count, *value.values.shape[1:])
        return torch.empty(shape, dtype=value.dtype or value.values.dtype)
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, Tensor) else value
