"""What differs between a run on plain PyG and one on ranks, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.checking.one_run import Outcome

_LEAST = 1e-3  # numbers whose largest is less are compared with this
_HALF = 3e-2


def differences(whole: Outcome, cut: Outcome, tolerance: float) -> list[str]:
    """Every result, gradient, parameter and buffer that differs, with by how much."""
    largest = [_largest(each[1]) for each in whole.gradients.values() if each is not None]
    # One that is zero but for rounding, of a bias before a norm, has no scale of its own.
    least = _LEAST * max(largest, default=0.0) or _LEAST
    kinds = (
        ('{}', whole.results, cut.results, _LEAST),
        ("the gradient of '{}'", whole.gradients, cut.gradients, least),
        ("the new '{}'", whole.states, cut.states, _LEAST),
    )
    texts = []
    for name, want, got, scale in kinds:
        for path in dict.fromkeys((*want, *got)):
            values = want.get(path, _Missing), got.get(path, _Missing)
            text = _difference(*values, tolerance, scale)
            if text:
                texts.append(f'{name.format(path or "the result")} {text}')
    return texts


class _Missing:
    """Stands where there is nothing."""


def _difference(want: Any, got: Any, tolerance: float, least: float) -> str:
    told = f'is {_told(want)} on plain PyG, and {_told(got)} on ranks'
    if type(want) is not type(got) or not isinstance(want, (float, complex, tuple)):
        return told if type(want) is not type(got) or want != got else ''
    (dtype, a), (other, b) = (
        value if isinstance(value, tuple) else ('', np.asarray(value)) for value in (want, got)
    )
    if dtype != other or a.shape != b.shape:
        return told
    if not np.issubdtype(a.dtype, np.inexact):
        count = int((a != b).sum())
        return f'differs in {count} of {a.size} numbers' if count else ''
    scale = max(_largest(a), least)
    bound = max(tolerance, _HALF if 'float16' in dtype else 0) * scale
    differs = ~np.isclose(b, a, rtol=0, atol=bound, equal_nan=True)
    if not differs.any():
        return ''
    with np.errstate(invalid='ignore'):
        distance = _largest(np.abs(b - a)[differs])
    return told if not dtype else f'differs by {distance / scale:.1g} of its largest value'


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        return f'{value[0]} {list(value[1].shape)}'
    return 'missing' if value is _Missing else repr(value)


def _largest(array: Any) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
