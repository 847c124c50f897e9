"""Compares what a port did with what plain PyG did, number by number."""

from __future__ import annotations

import re

import torch
from record import Record
from torch import Tensor

RELATIVE = 1e-9  # of a tensor's largest entry
ABSOLUTE = 1e-15  # below which a gradient is rounding
ROUNDING = 1e-13  # a gradient as small is zero
_NUMBER = re.compile(r'[-+]?\d+\.?\d*(?:e[-+]?\d+)?')
_TIME = re.compile(
    r'\b(runtime|time|duration|took|elapsed|throughput|latency)\b[^,]*', re.IGNORECASE
)


def difference(plain: Record, port: Record) -> str:
    """What differs first; nothing, if all that the port did is equal."""
    for number, (expected, found) in enumerate(zip(plain.steps, port.steps, strict=False), start=1):
        said = _step(expected, found)
        if said:
            return f'step {number}, {said}'
    for line, printed in zip(plain.lines, port.lines, strict=False):
        if not _is_same_line(line, printed):
            return f'printed {printed!r} for {line!r}'
    if not port.error and len(plain.steps) != len(port.steps):
        return f'{len(port.steps)} steps for {len(plain.steps)}'
    if not port.error and len(plain.lines) != len(port.lines):
        return f'{len(port.lines)} lines for {len(plain.lines)}'
    return ''


def _step(expected: list[Tensor | None], found: list[Tensor | None]) -> str:
    """What differs after a step; parameters and their gradients take turns."""
    if len(expected) != len(found):
        return f'{len(found) // 2} parameters for {len(expected) // 2}'
    largest = max(_largest(parameter) for parameter in expected[::2])
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        is_gradient = bool(place % 2)
        scale = _largest(one)
        # Adam makes a step of a gradient that is zero but for rounding, as before a batch norm.
        if not is_gradient and _largest(expected[place + 1]) < ROUNDING:
            scale = largest
        said = _tensors(one, other, scale)
        if said:
            return f'{"gradient" if is_gradient else "parameter"} {place // 2}: {said}'
    return ''


def _largest(tensor: Tensor | None) -> float:
    return float(tensor.abs().max()) if tensor is not None and tensor.numel() else 0.0


def _tensors(one: Tensor | None, other: Tensor | None, scale: float) -> str:
    if one is None or other is None:
        return '' if one is other else 'a gradient is missing, or not'
    if one.shape != other.shape:
        return f'shape {tuple(other.shape)} for {tuple(one.shape)}'
    worst = _largest(one - other)
    if worst <= RELATIVE * scale + ABSOLUTE:
        return ''
    return f'off by {worst:.1e}, the largest entry is {scale:.1e}'


def _is_same_line(one: str, other: str) -> bool:
    one, other = _TIME.sub('', one), _TIME.sub('', other)
    if _NUMBER.sub('', one) != _NUMBER.sub('', other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= RELATIVE * max(1.0, abs(float(a))) for a, b in pairs)


def is_comparable(plain: Record) -> bool:
    """Whether plain PyG did something, and with numbers."""
    tensors = [tensor for step in plain.steps for tensor in step if tensor is not None]
    return bool(tensors or plain.lines) and all(bool(torch.isfinite(t).all()) for t in tensors)
