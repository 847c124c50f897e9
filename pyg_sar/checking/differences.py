"""What differs between a run on plain PyG and one on ranks, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.checking.one_run import Outcome

_LEAST = 1e-3  # numbers whose largest is less are compared with this
_HALF = 3e-2


def differences(whole: Outcome, cut: Outcome, tolerance: float) -> list[str]:
    """Every result, gradient, parameter and buffer that differs, with by how much."""
    gradients = [each[1] for each in whole.gradients.values() if each is not None]
    # One that is zero but for rounding, of a bias before a norm, has no scale of its own.
    least = _LEAST * max((_largest(array) for array in gradients), default=0.0)
    texts = [
        f'{path or "its result"} {text}'
        for path, text in _compared(whole.results, cut.results, tolerance, _LEAST)
    ]
    texts += [
        f"the gradient of '{name}' {text}"
        for name, text in _compared(whole.gradients, cut.gradients, tolerance, least or _LEAST)
    ]
    texts += [
        f"'{name}' {text} afterwards"
        for name, text in _compared(whole.states, cut.states, tolerance, _LEAST)
    ]
    return texts


def _compared(
    whole: dict[str, Any], cut: dict[str, Any], tolerance: float, least: float
) -> list[tuple[str, str]]:
    found = []
    for path in dict.fromkeys((*whole, *cut)):
        if path not in whole or path not in cut:
            where = 'plain PyG' if path in whole else 'ranks'
            text: str | None = f'is there on {where} only'
        else:
            text = _difference(whole[path], cut[path], tolerance, least)
        if text is not None:
            found.append((path, text))
    return found


def _difference(want: Any, got: Any, tolerance: float, least: float) -> str | None:
    if type(want) is not type(got):
        return f'is {_kind(want)} on plain PyG, and {_kind(got)} on ranks'
    if not isinstance(want, tuple):
        if not isinstance(want, (float, complex)):
            return None if want == got else f'is {want!r} on plain PyG, and {got!r} on ranks'
        text = _of_arrays(np.asarray(want), np.asarray(got), tolerance, least)
        return text and f'is {want:.6g} on plain PyG, and {got:.6g} on ranks'
    if want[0] != got[0] or want[1].shape != got[1].shape:
        return f'is {_kind(want)} on plain PyG, and {_kind(got)} on ranks'
    if '16' in want[0] and 'float' in want[0]:
        tolerance = _HALF
    return _of_arrays(want[1], got[1], tolerance, least)


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f'{value[0]} {list(value[1].shape)}'
    return 'None' if value is None else type(value).__name__


def _largest(array: Any) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _of_arrays(want: Any, got: Any, tolerance: float, least: float) -> str | None:
    if not np.issubdtype(want.dtype, np.inexact):
        count = int((want != got).sum())
        if want.ndim == 0 and count:
            return f'is {want} on plain PyG, and {got} on ranks'
        return f'differs in {count} of {want.size} numbers' if count else None
    scale = max(_largest(want), least)
    same = np.isclose(got, want, rtol=0, atol=tolerance * scale, equal_nan=True)
    if same.all():
        return None
    with np.errstate(invalid='ignore'):
        distance = _largest(np.abs(got - want)[~same])
    return f'differs by {distance / scale:.1g} of its largest value' if distance else 'differs'
