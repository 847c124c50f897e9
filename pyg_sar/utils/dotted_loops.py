"""Loops for scores of GATv2, dots of leaky sums with a parameter, and for their gradients.

Arrays, indices and segments are those of :mod:`pyg_sar.utils.numba_loops`.
"""

from __future__ import annotations

from typing import Any

from pyg_sar.utils.compiled import ROWS_AHEAD as _ROWS_AHEAD
from pyg_sar.utils.compiled import U as _U
from pyg_sar.utils.compiled import compiled, prefetch, prefetch_row


@compiled
def leaky_dots(
    out: Any,
    largest: Any,
    source: Any,
    own: Any,
    att: Any,
    ptr: Any,
    columns: Any,
    keys: Any,
    perm: Any,
    heads: Any,
    channels: Any,
    start: Any,
    end: Any,
    slope: Any,
) -> bool:
    """``out[e, h] = <att[h], leaky_relu(source[columns[k], h] + own[r, h])>``, largest of each r.

    Segments, r, e and the result are those of :func:`~pyg_sar.utils.numba_loops.sums_and_dots`.
    """
    heads, channels = _U(heads), _U(channels)
    width, stop = heads * channels, _U(ptr[_U(end)])
    num_rows = _U(source.size) // width
    for segment in range(_U(start), _U(end)):
        row = _U(keys[segment]) if keys.size else segment
        for k in range(_U(ptr[segment]), _U(ptr[segment + _U(1)])):
            if k + _ROWS_AHEAD < stop:
                prefetch_row(source, _U(columns[k + _ROWS_AHEAD]) * width, width)
            if _U(columns[k]) >= num_rows:
                return False
            of, edge = _U(columns[k]) * width, (_U(perm[k]) if perm.size else k) * heads
            for h in range(heads):
                at, to, dot = h * channels, row * width + h * channels, out.dtype.type(0)
                for c in range(channels):
                    score = source[of + at + c] + own[to + c]
                    dot += att[at + c] * (score if score > 0 else score * slope)
                out[edge + h] = dot
                top = largest[row * heads + h]
                largest[row * heads + h] = dot if dot > top or dot != dot else top
    return True


@compiled
def gradients_of_leaky_dots(
    of_att: Any,
    of_rows: Any,
    gradients: Any,
    others: Any,
    rows: Any,
    att: Any,
    ptr: Any,
    columns: Any,
    keys: Any,
    perm: Any,
    heads: Any,
    channels: Any,
    start: Any,
    end: Any,
    slope: Any,
) -> bool:
    """The gradients of :func:`leaky_dots` for one of its ends, whose edges are the segments.

    | ``of_att[h] += gradients[e, h] * leaky_relu(others[columns[k], h] + rows[r, h])``
    | ``of_rows[r, h] += gradients[e, h] * att[h]``, times the slope where the sum is up to zero

    Those are left out that are not asked for. Returns True: the columns are those of the scores.
    """
    heads, channels = _U(heads), _U(channels)
    width, stop = heads * channels, _U(ptr[_U(end)])
    for segment in range(_U(start), _U(end)):
        to = (_U(keys[segment]) if keys.size else segment) * width
        for k in range(_U(ptr[segment]), _U(ptr[segment + _U(1)])):
            if k + _ROWS_AHEAD < stop:
                prefetch_row(others, _U(columns[k + _ROWS_AHEAD]) * width, width)
                if perm.size:
                    prefetch(gradients, _U(perm[k + _ROWS_AHEAD]) * heads)
            of, edge = _U(columns[k]) * width, (_U(perm[k]) if perm.size else k) * heads
            for h in range(heads):
                at, gradient = h * channels, gradients[edge + h]
                leaking = gradient * slope
                for c in range(channels):
                    score = others[of + at + c] + rows[to + at + c]
                    d = gradient if score > 0 else leaking
                    if of_rows is not None:
                        of_rows[to + at + c] += d * att[at + c]
                    if of_att is not None:
                        of_att[at + c] += d * score
    return True
