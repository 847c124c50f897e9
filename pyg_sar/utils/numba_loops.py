"""Loops that numba compiles: sums and dots over segments of edges, rows and numbers of nodes.

Arrays are flat: rows of ``heads * channels`` numbers, weights and dots of `heads`. Indices are
unsigned: a signed one may count from the end, and loops with that choice in them do not vectorise.
Sums may be reordered within a row of numbers (``reassoc``), or dots would not vectorise; infinities
and numbers that are none keep their meaning. :func:`pyg_sar.utils.installed.loops` imports this
file where numba is installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.utils.attention_loops import attention_weights as attention_weights
from pyg_sar.utils.attention_loops import gradients_of_scores as gradients_of_scores
from pyg_sar.utils.compiled import ROWS_AHEAD as _ROWS_AHEAD
from pyg_sar.utils.compiled import U as _U
from pyg_sar.utils.compiled import compiled, prefetch, prefetch_row
from pyg_sar.utils.dotted_loops import gradients_of_leaky_dots as gradients_of_leaky_dots
from pyg_sar.utils.dotted_loops import leaky_dots as leaky_dots

_AHEAD_BYTES = _U(6144)
"""Rows are asked for so far ahead: 12 of 512 bytes were best, and fewer of wider ones fit in."""
_SEGMENTS_AHEAD = _U(2)
_COPIED_AHEAD_BYTES = _U(2048)


@compiled
def sums_and_dots(
    out: Any,
    dots: Any,
    values: Any,
    own: Any,
    weight: Any,
    ptr: Any,
    columns: Any,
    keys: Any,
    perm: Any,
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
    num_rows = _U(values.size) // width
    ahead = max(_U(2), min(_AHEAD_BYTES // (width * _U(values.itemsize)), _U(32)))
    last = _U(ptr[_U(end)])
    for segment in range(_U(start), _U(end)):
        row = (_U(keys[segment]) if keys.size else segment) * width
        if keys.size and segment + _SEGMENTS_AHEAD < _U(end):  # rows that do not follow each other
            offset = _U(keys[segment + _SEGMENTS_AHEAD]) * width
            if out is not None:
                prefetch_row(out, offset, width)
            if dots is not None:
                prefetch_row(own, offset, width)
        if out is not None and replace:
            for c in range(width):
                out[row + c] = 0
        for k in range(_U(ptr[segment]), _U(ptr[segment + _U(1)])):
            later = k + ahead
            if later < last:
                prefetch_row(values, _U(columns[later]) * width, width)
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
            prefetch_row(target, _U(index[k + _ROWS_AHEAD]) * width, width)
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
    width = _U(width)
    ahead = max(_U(2), min(_COPIED_AHEAD_BYTES // (width * _U(values.itemsize)), _ROWS_AHEAD))
    for k in range(last):
        if k + ahead < last:
            later = first + step * rows[k + ahead]
            if 0 <= later < num_rows:
                prefetch_row(values, _U(later) * width, width)
        row = first + step * rows[k]
        if 0 <= row < num_rows:
            for c in range(width):
                out[k * width + c] = values[_U(row) * width + c]


_BLOCK_BITS = 6
_AHEAD = 12
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: the highest bits of products are spread evenly (Knuth, 6.4)."""


@compiled
def find(positions: Any, numbers: Any, num_known: Any, keys: Any) -> int:
    """Finds `keys` among the first `num_known` of `numbers`, and adds those that are not there.

    All are at least 0. It writes the position of every key, int64 ``[N]``, to `positions`, and new
    keys behind the known ones of `numbers`, int64 ``[num_known + N]``. Of equal known ones the
    first counts. Returns how many are in `numbers`.

    A hash table of all would not stay in the cache. So each block of close numbers has a part of
    it, at most half as large again as it needs: numbers that come in order stay in few parts.
    """
    count, top = np.int64(num_known), np.int64(0)
    for i in range(count):
        top = max(top, numbers[i])
    for key in keys:
        top = max(top, key)
    shift = np.int64(0)
    while top >> shift >= 1 << _BLOCK_BITS:
        shift += 1
    of_block = np.zeros(1 << _BLOCK_BITS, np.int64)
    for i in range(count):
        of_block[numbers[i] >> shift] += 1
    for key in keys:
        of_block[key >> shift] += 1
    start, right = np.zeros_like(of_block), np.zeros_like(of_block)
    size = np.int64(0)
    for block in range(of_block.size):
        bits = np.int64(1)
        while 2 << bits < 3 * of_block[block]:
            bits += 1
        start[block], right[block] = size, 64 - bits
        size += 1 << bits
    table = np.zeros(size, np.int32)  # positions, from 1 on; 0 is free
    for i in range(num_known + keys.size):
        key = numbers[i] if i < num_known else keys[i - num_known]
        if num_known <= i < num_known + keys.size - _AHEAD:
            later = keys[i - num_known + _AHEAD]
            block = later >> shift
            slot = np.int64((np.uint64(later) * _GOLDEN) >> np.uint64(right[block]))
            prefetch(table, np.uintp(start[block] + slot))
        block = key >> shift
        last = (1 << (64 - right[block])) - 1
        slot = np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(right[block]))
        at = table[start[block] + slot]
        while at != 0 and numbers[at - 1] != key:
            slot = (slot + 1) & last
            at = table[start[block] + slot]
        if at == 0:
            if i >= num_known:
                numbers[count] = key
                count += 1
            at = count if i >= num_known else i + 1
            table[start[block] + slot] = at
        if i >= num_known:
            positions[i - num_known] = at - 1
    return count


@compiled
def renumber(positions: Any, number: Any, first: Any) -> None:
    """``positions[k] = number[positions[k] - first]``, where it is at least `first`."""
    for k in range(positions.size):
        if positions[k] >= first:
            positions[k] = number[positions[k] - first]
