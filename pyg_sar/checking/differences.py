"""Describes what differs between a run on plain PyG and one on ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.checking.one_run import Outcome

_LEAST = 1e-3  # the scale of arrays whose largest value is less
_HALF = 3e-2  # the least tolerance of float16 and bfloat16


def differences(whole: Outcome, cut: Outcome, tolerance: float) -> list[str]:
    """A text for every result, gradient, parameter and buffer that differs."""
    largest = [_largest(grad[1]) for grad in whole.gradients.values() if grad is not None]
    # The gradient of a bias before a norm is rounding errors: it has no scale of its own.
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
    """Stands for a value that only one run has."""


def _difference(want: Any, got: Any, tolerance: float, least: float) -> str:
    both = f'is {_text(want)} on plain PyG, and {_text(got)} on ranks'
    if type(want) is not type(got) or not isinstance(want, (float, complex, tuple)):
        return both if type(want) is not type(got) or want != got else ''
    (dtype, a), (other, b) = (
        value if isinstance(value, tuple) else ('', np.asarray(value)) for value in (want, got)
    )
    if dtype != other or a.shape != b.shape:
        return both
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
    return both if not dtype else f'differs by {distance / scale:.1g} of its largest value'


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f'{value[0]} {list(value[1].shape)}'
    return 'missing' if value is _Missing else repr(value)


def _largest(array: Any) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
