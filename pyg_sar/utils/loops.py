"""Sums and dots over segments of edges in one loop; rows that are read, added and copied.

`out` or `dots` that are None are left out when the loop is compiled. Arrays are flat: rows of
``heads * channels`` numbers, weights and dots of `heads`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.utils.jit import compiled, prefetch

_U = np.uintp
_LINE_BYTES = _U(64)
_ROWS_AHEAD = _U(24)
_AHEAD_BYTES = _U(6144)
"""Rows are asked for so far ahead: 12 of 512 bytes were best, and fewer of wider ones fit in."""
_SEGMENTS_AHEAD = _U(2)
_COPIED_AHEAD_BYTES = _U(2048)


@compiled
def sums_and_dots(
    out: Any,
    dots: Any,
    own: Any,
    values: Any,
    ptr: Any,
    columns: Any,
    keys: Any,
    perm: Any,
    weight: Any,
    heads: Any,
    channels: Any,
    start: Any,
    end: Any,
    replace: Any,
) -> bool:
    """For every entry k of segments `start` to `end`, with r for ``keys[s]`` and e for ``perm[k]``.

    | ``out[r, h] += weight[e, h] * values[columns[k], h]``
    | ``dots[e, h] = <own[r, h], values[columns[k], h]>``

    Where `keys` is empty r is s, where `perm` is empty e is k. Every row of `values` is read once.

    Returns:
        Whether all columns were rows of `values`; it stops at the first that is not.
    """
    heads, channels = _U(heads), _U(channels)
    width = heads * channels
    num_rows, line = _U(values.size) // width, _LINE_BYTES // _U(values.itemsize)
    ahead = max(_U(2), min(_AHEAD_BYTES // (width * _U(values.itemsize)), _U(32)))
    last = _U(ptr[_U(end)])
    for segment in range(_U(start), _U(end)):
        row = (_U(keys[segment]) if keys.size else segment) * width
        if keys.size and segment + _SEGMENTS_AHEAD < _U(end):  # rows that do not follow each other
            offset = _U(keys[segment + _SEGMENTS_AHEAD]) * width
            for c in range(_U(0), width, line):
                if out is not None:
                    prefetch(out, offset + c)
                if dots is not None:
                    prefetch(own, offset + c)
        if out is not None and replace:
            for c in range(width):
                out[row + c] = 0
        for k in range(_U(ptr[segment]), _U(ptr[segment + _U(1)])):
            later = k + ahead
            if later < last:
                offset = _U(columns[later]) * width
                for c in range(_U(0), width, line):
                    prefetch(values, offset + c)
                if perm.size:
                    offset = _U(perm[later]) * heads
                    if out is not None:
                        prefetch(weight, offset)
                    if dots is not None:
                        prefetch(dots, offset)
            source = _U(columns[k])
            if source >= num_rows:
                return False
            edge = _U(perm[k]) if perm.size else k
            for h in range(heads):
                to, of = row + h * channels, source * width + h * channels
                if dots is not None:
                    dot = values.dtype.type(0)
                    for c in range(channels):
                        dot += own[to + c] * values[of + c]
                    dots[edge * heads + h] = dot
                if out is not None:
                    factor = weight[edge * heads + h]
                    for c in range(channels):
                        out[to + c] += factor * values[of + c]
    return True


@compiled
def read_rows(out: Any, values: Any, index: Any, width: Any) -> bool:
    """``out[k] = values[index[k]]``, rows of `width` numbers; returns as above."""
    width = _U(width)
    num_rows, last = _U(values.size) // width, _U(index.size)
    for k in range(last):
        if k + _ROWS_AHEAD < last:
            prefetch(values, _U(index[k + _ROWS_AHEAD]) * width)
        row = _U(index[k])
        if row >= num_rows:
            return False
        for c in range(width):
            out[k * width + c] = values[row * width + c]
    return True


@compiled
def add_rows(target: Any, index: Any, rows: Any, width: Any) -> bool:
    """``target[index[k]] += rows[k]``, one after another; otherwise as :func:`read_rows`."""
    width = _U(width)
    num_rows, last = _U(target.size) // width, _U(index.size)
    for k in range(last):
        if k + _ROWS_AHEAD < last:
            prefetch(target, _U(index[k + _ROWS_AHEAD]) * width)
        row = _U(index[k])
        if row >= num_rows:
            return False
        for c in range(width):
            target[row * width + c] += rows[k * width + c]
    return True


@compiled
def copy_rows(out: Any, values: Any, rows: Any, first: Any, step: Any, width: Any) -> None:
    """``out[k] = values[first + step * rows[k]]``, wherever that is a row of `values`."""
    num_rows, last = np.int64(values.size // width), _U(rows.size)
    width, line = _U(width), _LINE_BYTES // _U(values.itemsize)
    ahead = max(_U(2), min(_COPIED_AHEAD_BYTES // (width * _U(values.itemsize)), _ROWS_AHEAD))
    for k in range(last):
        if k + ahead < last:
            later = first + step * rows[k + ahead]
            if 0 <= later < num_rows:
                for c in range(_U(0), width, line):
                    prefetch(values, _U(later) * width + c)
        row = first + step * rows[k]
        if 0 <= row < num_rows:
            for c in range(width):
                out[k * width + c] = values[_U(row) * width + c]
