"""Loops that numba compiles: sums and dots over segments of edges, rows and numbers of nodes.

Arrays are flat: rows of ``heads * channels`` numbers, weights and dots of `heads`. Indices are
unsigned: a signed one may count from the end, and loops with that choice in them do not vectorise.
Sums may be reordered within a row of numbers (``reassoc``), or dots would not vectorise; infinities
and numbers that are none keep their meaning. :func:`pyg_sar.utils.installed.loops` imports this
file where numba is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Loop = TypeVar('Loop', bound=Callable[..., Any])

_OPTIONS = {'nogil': True, 'error_model': 'numpy', 'fastmath': {'reassoc', 'contract'}}


def compiled(loop: Loop, **options: Any) -> Loop:
    """Compiles a loop at its first call with arrays of new dtypes, and keeps it on disk."""
    options = _OPTIONS | options
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # there is no folder that may be written
        return njit(**options)(loop)


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of ``array[index]``, which may lie beyond its end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(values.data, [arguments[1]])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, 'llvm.prefetch.p0')
        # To read, into the nearest cache, data rather than code: as the LLVM manual numbers them.
        builder.call(function, [builder.bitcast(address, byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.uintp), generate


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


@intrinsic
def _as_float32(typing: Any, bits: Any) -> Any:
    """The number with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


_F, _I = np.float32, np.int32
_LEAST = _F(-87.25)  # below lie numbers that float32 holds with fewer bits
_LOG2_E, _HALF, _ONE = _F(1.442695041), _F(0.5), _F(1)
_LN_2, _LN_2_REST = _F(0.693359375), _F(-2.12194440e-4)
# Of exp(r) = 1 + r + r^2 (c5 + r (c4 + ...)), -ln(2) / 2 < r < ln(2) / 2 (S. Moshier, Cephes).
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)


@partial(compiled, fastmath={'contract'})
def _exponentials(values: Any, count: Any) -> None:
    """``values[i] = exp(values[i])`` of numbers up to zero; in float32 to the last bit but one."""
    if values.itemsize == 8:
        for i in range(_U(count)):
            values[i] = np.exp(values[i])
        return
    for i in range(_U(count)):  # a loop that vectorises
        value = values[i]
        x = value if value > _LEAST else _LEAST
        power = np.floor(x * _LOG2_E + _HALF)
        r = (x - power * _LN_2) - power * _LN_2_REST
        series = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
        result = (series * r * r + r + _ONE) * _as_float32((_I(power) + _I(127)) << _I(23))
        values[i] = result if value > _LEAST else (_F(0) if value <= _LEAST else value)


@compiled
def attention_weights(
    out: Any,
    largest: Any,
    sums: Any,
    source: Any,
    own: Any,
    ptr: Any,
    columns: Any,
    keys: Any,
    perm: Any,
    heads: Any,
    start: Any,
    end: Any,
    slope: Any,
    first: Any,
    last: Any,
) -> bool:
    """A softmax over the entries of each row, in three steps, of which it does `first` to `last`.

    | 0: ``out[e, h] = leaky_relu(source[columns[k], h] + own[r, h])``, and the largest of each r
    | 1: ``out[e, h] = exp(out[e, h] - largest[r, h])``, added to ``sums[r, h]``
    | 2: ``out[e, h] *= 1 / sums[r, h]``

    Segments, r, e and the result are those of :func:`sums_and_dots`.
    """
    heads, stop = _U(heads), _U(ptr[_U(end)])
    num_rows, most = _U(source.size) // heads, _U(0)
    for segment in range(_U(start), _U(end)):
        most = max(most, _U(ptr[segment + _U(1)] - ptr[segment]))
    scratch = np.empty(most * heads, out.dtype)  # of one segment, head by head
    for segment in range(_U(start), _U(end)):
        row = (_U(keys[segment]) if keys.size else segment) * heads
        begin, count = _U(ptr[segment]), _U(ptr[segment + _U(1)] - ptr[segment])
        for i in range(count):
            k = begin + i
            if k + _ROWS_AHEAD < stop:
                if first == 0:
                    prefetch(source, _U(columns[k + _ROWS_AHEAD]) * heads)
                if perm.size:
                    prefetch(out, _U(perm[k + _ROWS_AHEAD]) * heads)
            if first > 0:
                edge = (_U(perm[k]) if perm.size else k) * heads
                for h in range(heads):
                    scratch[h * count + i] = out[edge + h]
                continue
            if _U(columns[k]) >= num_rows:
                return False
            of = _U(columns[k]) * heads
            for h in range(heads):
                score = source[of + h] + own[row + h]
                scratch[h * count + i] = score if score > 0 else score * slope
        for h in range(heads):
            if first == 0:
                top = largest[row + h]
                for i in range(count):
                    score = scratch[h * count + i]
                    top = score if score > top or score != score else top
                largest[row + h] = top
            if first <= 1 <= last:
                top = largest[row + h]
                for i in range(count):
                    scratch[h * count + i] -= top
        if first <= 1 <= last:
            _exponentials(scratch, count * heads)
        for h in range(heads):
            total = sums[row + h]
            if first <= 1 <= last:
                for i in range(count):
                    total += scratch[h * count + i]
                sums[row + h] = total
            if last == 2:
                total = 1 / total
                for i in range(count):
                    scratch[h * count + i] *= total
        for i in range(count):
            edge = (_U(perm[begin + i]) if perm.size else begin + i) * heads
            for h in range(heads):
                out[edge + h] = scratch[h * count + i]
    return True


@compiled
def gradients_of_scores(
    row_sum: Any,
    of_source: Any,
    of_own: Any,
    weights: Any,
    gradients: Any,
    source: Any,
    own: Any,
    ptr: Any,
    columns: Any,
    keys: Any,
    perm: Any,
    heads: Any,
    start: Any,
    end: Any,
    slope: Any,
    first: Any,
    last: Any,
) -> bool:
    """The gradients of :func:`attention_weights`, in two steps, of which it does `first` to `last`.

    | 0: ``row_sum[r, h] += weights[e, h] * gradients[e, h]``
    | 1: ``d = weights[e, h] * (gradients[e, h] - row_sum[r, h])``, times the slope up to zero;
      ``of_source[columns[k], h] += d`` and ``of_own[r, h] += d``, where they are asked for

    Returns True: the columns are those of the weights.
    """
    heads, stop = _U(heads), _U(ptr[_U(end)])
    for segment in range(_U(start), _U(end)):
        row = (_U(keys[segment]) if keys.size else segment) * heads
        begin, count = _U(ptr[segment]), _U(ptr[segment + _U(1)] - ptr[segment])
        if first == 0:
            for i in range(count):
                k = begin + i
                if perm.size and k + _ROWS_AHEAD < stop:
                    prefetch(weights, _U(perm[k + _ROWS_AHEAD]) * heads)
                    prefetch(gradients, _U(perm[k + _ROWS_AHEAD]) * heads)
                edge = (_U(perm[k]) if perm.size else k) * heads
                for h in range(heads):
                    row_sum[row + h] += weights[edge + h] * gradients[edge + h]
        if last == 0:
            continue
        for i in range(count):
            k = begin + i
            if k + _ROWS_AHEAD < stop:
                later = _U(columns[k + _ROWS_AHEAD]) * heads
                prefetch(source, later)
                if of_source is not None:
                    prefetch(of_source, later)
                if perm.size and first == 1:
                    prefetch(weights, _U(perm[k + _ROWS_AHEAD]) * heads)
                    prefetch(gradients, _U(perm[k + _ROWS_AHEAD]) * heads)
            of, edge = _U(columns[k]) * heads, (_U(perm[k]) if perm.size else k) * heads
            for h in range(heads):
                d = weights[edge + h] * (gradients[edge + h] - row_sum[row + h])
                d = d if source[of + h] + own[row + h] > 0 else d * slope
                if of_source is not None:
                    of_source[of + h] += d
                if of_own is not None:
                    of_own[row + h] += d
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
