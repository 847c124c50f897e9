"""The sums and dots of :mod:`pyg_sar.ops.spmm` by the compiled loop."""

from __future__ import annotations

from functools import partial
from math import prod

import torch
from torch import Tensor

from pyg_sar.ops.workers import side_by_side
from pyg_sar.shard.csr import Segments, chunks_of_segments
from pyg_sar.utils.installed import loops
from pyg_sar.utils.offload import arrays_of

_DTYPES = (torch.float32, torch.float64)

_CHUNK_EDGES = 1 << 16
"""Edges that a thread takes at a time."""


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
    module, (heads, channels) = loops(), values.shape[1:]
    assert module is not None
    if out is not None and replace and segments.leaves_rows_out:
        out.zero_()
    keys = segments.ptr.new_empty(0, dtype=torch.int64) if segments.keys is None else segments.keys
    perm = segments.columns[:0] if segments.perm is None else segments.perm
    read = own, values, segments.ptr, segments.columns, keys, perm, weight
    arrays = arrays_of((out, dots), read)
    loop = partial(module.sums_and_dots, *arrays, heads, channels)

    def run(start: int, end: int, first: int, last: int) -> None:
        if not loop(start, end, replace):
            raise IndexError(f'expected columns below {values.size(0)} in a block')

    chunks = chunks_of_segments(segments, segments.ptr.numel(), _CHUNK_EDGES)
    side_by_side((partial(run, *chunk) for chunk in chunks), values.device)
