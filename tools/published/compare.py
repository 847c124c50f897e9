"""Compares what a port did with what plain PyG did, number by number."""

from __future__ import annotations

import re

import torch
from runs import Record
from torch import Tensor

RELATIVE = 1e-9  # of a tensor's largest entry
ABSOLUTE = 1e-15  # below which a gradient is rounding
_NUMBER = re.compile(r'[-+]?\d+\.?\d*(?:e[-+]?\d+)?')
_TIME = re.compile(r'\b(time|duration|took|elapsed|throughput|latency)\b[^,]*', re.IGNORECASE)


def difference(plain: Record, port: Record) -> str:
    """What differs first; nothing, if all that the port did is equal."""
    for number, (expected, found) in enumerate(zip(plain.steps, port.steps), start=1):
        if len(expected) != len(found):
            return f'step {number}: {len(found) // 2} parameters for {len(expected) // 2}'
        for place, (one, other) in enumerate(zip(expected, found)):
            said = _tensors(one, other)
            if said:
                return f'step {number}, {"gradient" if place % 2 else "parameter"} {place // 2}: {said}'
    for one, other in zip(plain.lines, port.lines):
        if not _is_same_line(one, other):
            return f'printed {other!r} for {one!r}'
    if not port.error and len(plain.steps) != len(port.steps):
        return f'{len(port.steps)} steps for {len(plain.steps)}'
    if not port.error and len(plain.lines) != len(port.lines):
        return f'{len(port.lines)} lines for {len(plain.lines)}'
    return ''


def _tensors(one: Tensor | None, other: Tensor | None) -> str:
    if one is None or other is None:
        return '' if one is other else 'a gradient is missing, or not'
    if one.shape != other.shape:
        return f'shape {tuple(other.shape)} for {tuple(one.shape)}'
    if not one.numel():
        return ''
    scale = one.abs().max()
    worst = (one - other).abs().max()
    if bool(worst <= RELATIVE * scale + ABSOLUTE):
        return ''
    return f'off by {float(worst):.1e}, the largest entry is {float(scale):.1e}'


def _is_same_line(one: str, other: str) -> bool:
    one, other = _TIME.sub('', one), _TIME.sub('', other)
    if _NUMBER.sub('', one) != _NUMBER.sub('', other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other))
    return all(abs(float(a) - float(b)) <= RELATIVE * max(1.0, abs(float(a))) for a, b in pairs)


def is_comparable(plain: Record) -> bool:
    """Whether plain PyG did something, and with numbers."""
    tensors = [tensor for step in plain.steps for tensor in step if tensor is not None]
    return bool(tensors or plain.lines) and all(bool(torch.isfinite(t).all()) for t in tensors)
