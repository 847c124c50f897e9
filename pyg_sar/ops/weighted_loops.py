"""The sums and dots of :mod:`pyg_sar.ops.spmm` by the compiled loop, and on several threads.

One piece writes a row, or the sums of all pieces are added in their order. Where a piece ends is
decided by the edges alone. So results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.csr import Segments, chunks_of_segments
from pyg_sar.utils.installed import loops
from pyg_sar.utils.offload import arrays_of
from pyg_sar.utils.side_by_side import side_by_side

_DTYPES = (torch.float32, torch.float64)

_CHUNK_EDGES = 1 << 16
"""Edges that a thread takes at a time."""
_EDGES_OF_SUMS, _MOST_SUMS = 2, 8
"""Chunks that add to the same rows have so many edges for each row, and are at most so many."""


def has_loop(values: Tensor) -> bool:
    """Whether :func:`run_loop` takes rows like `values`."""
    is_fit = values.device.type == 'cpu' and values.dtype in _DTYPES
    return is_fit and prod(values.shape[1:]) > 0 and loops() is not None


def run_loop(
    values: Tensor,
    segments: Segments,
    *,
    out: Tensor | None = None,
    weight: Tensor | None = None,
    own: Tensor | None = None,
    dots: Tensor | None = None,
    replace: bool = False,
) -> None:
    """Adds weighted sums to `out`, writes dots of rows of `own` and `values` to `dots`, or both.

    `values` is ``[num_cols, H, C]``, `out` and `own` ``[num_rows, H, C]``, `weight` and `dots`
    ``[num_edges, H]`` in edge order; `out` and `dots` are contiguous. With `replace` sums replace
    what `out` holds, and rows without a segment become zero. Raises IndexError if a column is no
    row.
    """
    if out is not None and replace and segments.leaves_rows_out:
        out.zero_()
    read = values, own, weight
    run_on_edges('sums_and_dots', segments, (out, dots), read, *values.shape[1:], ends=(replace,))


def run_on_edges(
    name: str,
    segments: Segments,
    written: Sequence[Tensor | None],
    read: Sequence[Any],
    *widths: Any,
    ends: Sequence[Any] = (),
    adds: bool = False,
) -> None:
    """Runs a loop over edges, the segments of a chunk after those of another one on each thread.

    It gets what is written and read, pointers, columns, rows and edges of the segments, the
    `widths`, the first and last segment, and `ends`. With `adds` several chunks may add to one row
    of the first of `written`: each adds to zeros of its own. Raises IndexError if a column is no
    row of what is read first.
    """
    keys = segments.ptr.new_empty(0, dtype=torch.int64) if segments.keys is None else segments.keys
    perm = segments.columns[:0] if segments.perm is None else segments.perm
    first, *others = arrays_of(written, (*read, segments.ptr, segments.columns, keys, perm))
    loop, most = getattr(loops(), name), _CHUNK_EDGES

    def run(to: Any, start: int, end: int, *_: int) -> None:
        if not loop(to, *others, *widths, start, end, *ends):
            raise IndexError(f'expected columns below {read[0].size(0)} in a block')

    sums, num_edges = written[0] if adds else None, segments.columns.numel()
    if sums is not None:
        most = max(most, _EDGES_OF_SUMS * sums.size(0), num_edges // _MOST_SUMS)
    if num_edges <= most or (sums is None and torch.get_num_threads() == 1):
        run(first, 0, segments.ptr.numel() - 1)
        return
    chunks = [*chunks_of_segments(segments, segments.ptr.numel(), most)]
    if sums is None:
        side_by_side((partial(run, first, *chunk) for chunk in chunks), segments.ptr.device)
        return
    more = [torch.zeros_like(sums) for _ in chunks[1:]]
    targets = first, *arrays_of(more, ())
    pieces = (partial(run, to, *chunk) for to, chunk in zip(targets, chunks, strict=True))
    side_by_side(pieces, segments.ptr.device)
    for of_chunk in more:
        sums.add_(of_chunk)
