"""Cases written by hand: shapes, which of them are rows, and what becomes of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from op_run import Case, Verdict, verdict_of, whole_of


class Small(NamedTuple):
    """``function(*tensors)`` of random numbers; ``tensors`` are like ``[5, 3]@0 [3]``."""

    name: str
    function: Callable[..., Any]
    tensors: str


def verdict(small: Small, *, has_empty: bool, dtype: torch.dtype = torch.float64) -> Verdict:
    """Against the whole, with gradients; whether what it gives is rows is noted."""
    generator = torch.Generator().manual_seed(0)
    tensors, tagging = [], []
    for text in small.tensors.replace(', ', ',').split():
        shape, _, dim = text.partition('@')
        sizes = [int(size) for size in shape.strip('[]').split(',')]
        tensors.append(torch.randn(sizes, dtype=dtype, generator=generator))
        tagging.append(int(dim) if dim else None)
    case = Case(small.function, tuple(tensors), {})
    try:
        whole = whole_of(case)
    except RuntimeError:
        whole = whole_of(case, with_grads=False)
    return verdict_of(case, tuple(tagging), whole, has_empty=has_empty)
