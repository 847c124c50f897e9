"""Cases written by hand: an expression, which of its tensors are rows, and what becomes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from expressions import expressions
from op_run import Case, Verdict, verdict_of, whole_of


class Small(NamedTuple):
    """An expression of x, y, z and w, random tensors that are like ``[5, 3]@0 [3]``."""

    expression: str
    tensors: str

    def __call__(self, *tensors: Any) -> Any:
        names = dict(zip('xyzw', tensors, strict=False))
        return eval(self.expression, {'torch': torch, 'F': F, **names})


def cases(table: str) -> list[Small]:
    """Those of a table: each is ``expression | tensors``."""
    return [Small(*each.split(' | ')) for each in expressions(table)]


def verdict(small: Small, *, has_empty: bool, dtype: torch.dtype = torch.float64) -> Verdict:
    """Against the whole, with gradients; whether what it gives is rows is noted."""
    generator = torch.Generator().manual_seed(0)
    tensors, tagging = [], []
    for text in small.tensors.split():
        shape, _, dim = text.partition('@')
        sizes = [int(size) for size in shape.strip('[]').split(',')]
        tensors.append(torch.randn(sizes, dtype=dtype, generator=generator))
        tagging.append(int(dim) if dim else None)
    case = Case(small, tuple(tensors), {})
    try:
        whole = whole_of(case)
    except RuntimeError:
        whole = whole_of(case, with_grads=False)
    return verdict_of(case, tuple(tagging), whole, has_empty=has_empty)
