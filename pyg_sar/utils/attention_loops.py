"""Loops for weights of attention, the softmax of leaky scores, and for their gradients.

Arrays, indices and segments are those of :mod:`pyg_sar.utils.numba_loops`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pyg_sar.utils.compiled import ROWS_AHEAD as _ROWS_AHEAD
from pyg_sar.utils.compiled import U as _U
from pyg_sar.utils.compiled import compiled, prefetch


@intrinsic
def _as_float32(typing: Any, bits: Any) -> Any:
    """The number with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


_LANES = _U(16)
_F, _I = np.float32, np.int32
_LEAST = _F(-87.25)  # below lie numbers that float32 holds with fewer bits
_LOG2_E, _HALF, _ONE = _F(1.442695041), _F(0.5), _F(1)
_LN_2, _LN_2_REST = _F(0.693359375), _F(-2.12194440e-4)
# Of exp(r) = 1 + r + r^2 (c5 + r (c4 + ...)), -ln(2) / 2 < r < ln(2) / 2 (S. Moshier, Cephes).
_C0, _C1, _C2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_C3, _C4, _C5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)


@partial(compiled, fastmath={'contract'})
def exponentials(values: Any, count: Any) -> None:
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

    Segments, r, e and the result are those of :func:`~pyg_sar.utils.numba_loops.sums_and_dots`.
    `heads` is a tuple of so many numbers: loops are compiled for its length.
    """
    width, stop = _U(len(heads)), _U(ptr[_U(end)])
    num_rows, most = _U(source.size) // width, _U(0)
    for segment in range(_U(start), _U(end)):
        most = max(most, _U(ptr[segment + _U(1)] - ptr[segment]))
    scratch = np.empty(most * width + _LANES, out.dtype)  # of one segment
    here = np.empty(len(heads), out.dtype)
    for segment in range(_U(start), _U(end)):
        row = (_U(keys[segment]) if keys.size else segment) * width
        begin, count = _U(ptr[segment]), _U(ptr[segment + _U(1)] - ptr[segment])
        for h in range(width):
            here[h] = largest[row + h]
        for i in range(count if first > 0 else _U(0)):
            k = begin + i
            if perm.size and k + _ROWS_AHEAD < stop:
                prefetch(out, _U(perm[k + _ROWS_AHEAD]) * width)
            edge = (_U(perm[k]) if perm.size else k) * width
            for h in range(width):
                scratch[i * width + h] = out[edge + h]
        for i in range(count if first == 0 else _U(0)):
            k = begin + i
            if k + _ROWS_AHEAD < stop:
                prefetch(source, _U(columns[k + _ROWS_AHEAD]) * width)
                if perm.size:
                    prefetch(out, _U(perm[k + _ROWS_AHEAD]) * width)
            if _U(columns[k]) >= num_rows:
                return False
            of = _U(columns[k]) * width
            for h in range(width):
                score = source[of + h] + own[row + h]
                score = score if score > 0 else score * slope
                scratch[i * width + h] = score
                here[h] = score if score > here[h] or score != score else here[h]
        for h in range(width):
            largest[row + h] = here[h]
        if first <= 1 <= last:
            for i in range(count):
                for h in range(width):
                    scratch[i * width + h] -= here[h]
            num_exponents = count * width
            for lane in range(_LANES):  # whole vectors
                scratch[num_exponents + lane] = 0
            exponentials(scratch, (num_exponents + _LANES - _U(1)) // _LANES * _LANES)
            for h in range(width):
                here[h] = sums[row + h]
            for i in range(count):
                for h in range(width):
                    here[h] += scratch[i * width + h]
            for h in range(width):
                sums[row + h] = here[h]
        for h in range(width):
            here[h] = 1 / sums[row + h] if last == 2 else 1
        for i in range(count):
            edge = (_U(perm[begin + i]) if perm.size else begin + i) * width
            for h in range(width):
                out[edge + h] = scratch[i * width + h] * here[h]
    return True


@compiled
def gradients_of_scores(
    of_source: Any,
    row_sum: Any,
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

    Returns True: the columns are those of the weights. `heads` is as there.
    """
    width, stop = _U(len(heads)), _U(ptr[_U(end)])
    total, here = np.empty(len(heads), own.dtype), np.empty(len(heads), own.dtype)
    for segment in range(_U(start), _U(end)):
        row = (_U(keys[segment]) if keys.size else segment) * width
        begin, count = _U(ptr[segment]), _U(ptr[segment + _U(1)] - ptr[segment])
        for h in range(width):
            total[h], here[h] = row_sum[row + h], 0
        if first == 0:
            for i in range(count):
                k = begin + i
                if perm.size and k + _ROWS_AHEAD < stop:
                    prefetch(weights, _U(perm[k + _ROWS_AHEAD]) * width)
                    prefetch(gradients, _U(perm[k + _ROWS_AHEAD]) * width)
                edge = (_U(perm[k]) if perm.size else k) * width
                for h in range(width):
                    total[h] += weights[edge + h] * gradients[edge + h]
            for h in range(width):
                row_sum[row + h] = total[h]
        if last == 0:
            continue
        for i in range(count):
            k = begin + i
            if k + _ROWS_AHEAD < stop:
                later = _U(columns[k + _ROWS_AHEAD]) * width
                prefetch(source, later)
                if of_source is not None:
                    prefetch(of_source, later)
                if perm.size and first == 1:
                    prefetch(weights, _U(perm[k + _ROWS_AHEAD]) * width)
                    prefetch(gradients, _U(perm[k + _ROWS_AHEAD]) * width)
            of, edge = _U(columns[k]) * width, (_U(perm[k]) if perm.size else k) * width
            for h in range(width):
                d = weights[edge + h] * (gradients[edge + h] - total[h])
                d = d if source[of + h] + own[row + h] > 0 else d * slope
                if of_source is not None:
                    of_source[of + h] += d
                here[h] += d
        if of_own is not None:
            for h in range(width):
                of_own[row + h] += here[h]
    return True
