"""Rows of a tensor that is away, without the rest of it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.launch.in_turns.tiers import Away
from pyg_sar.utils.offload import address_of

_PAGE = 4096
_SPAN_BYTES = 1 << 20
"""The most that one read gets, if some of it is not needed."""


def read_run(out: Tensor, run: Tensor, away: Away) -> None:
    """A contiguous tensor into one on the host."""
    start = int(run.storage_offset()) * run.element_size()
    away.announce(run.nbytes, start)
    away.read_part(address_of(out), run.nbytes, start)


def read_rows(out: Tensor, tensor: Tensor, rows: np.ndarray[Any, Any], away: Away) -> None:
    """Rows of a contiguous tensor into a contiguous one on the host."""
    offset, there = int(tensor.storage_offset()), away.in_host_memory()
    if there is not None:
        whole = torch.empty(0, dtype=tensor.dtype, device='cpu')
        whole.set_(there, offset, tensor.shape, tensor.stride())
        torch.index_select(whole, 0, torch.from_numpy(rows), out=out)
        return
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    into = _bytes_at(address_of(out), len(rows), row_bytes)
    begin = offset * tensor.element_size()
    spans = [
        (first, last, int(rows[first]), int(rows[last - 1]) + 1)
        for first, last in _spans(rows, row_bytes)
    ]
    for _, _, low, high in spans:
        away.announce((high - low) * row_bytes, begin + low * row_bytes)
    for first, last, low, high in spans:
        is_run = high - low == last - first
        span = into[first:last] if is_run else np.empty((high - low, row_bytes), np.uint8)
        away.read_part(span.ctypes.data, (high - low) * row_bytes, begin + low * row_bytes)
        if not is_run:
            np.take(span, rows[first:last] - low, axis=0, out=into[first:last], mode='clip')


def _bytes_at(address: int, num_rows: int, row_bytes: int) -> np.ndarray[Any, Any]:
    """Memory as an array ``[num_rows, row_bytes]``."""
    memory = (ctypes.c_uint8 * (num_rows * row_bytes)).from_address(address)
    return np.asarray(memory).reshape(num_rows, row_bytes)


def _spans(rows: np.ndarray[Any, Any], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of `rows` that one read gets: ascending, with no page between two.

    A disk gives whole pages, and a call for every row takes longer than the rows between.
    """
    steps = np.diff(rows)
    ends = np.flatnonzero((steps < 1) | (steps > 1 + _PAGE // row_bytes)) + 1
    for first, last in pairwise([0, *ends.tolist(), len(rows)] if len(rows) else []):
        while first < last:
            bound = int(rows[first]) + max(_SPAN_BYTES // row_bytes, 1)
            end = first + int(np.searchsorted(rows[first:last], bound))
            yield first, end
            first = end
