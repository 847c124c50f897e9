"""What every function is run with: torch's own sample inputs, and which of them are rows."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from op_run import Case, Tagging, tensors_of
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

NUM_SAMPLES = 6
RUNS_OF_A_SAMPLE = 8
RUNS_OF_A_VARIANT = 2
"""At most so many of a function, and of one of its samples."""

_MOST_SAMPLES = 300
_LARGEST = 4000  # numbers of a tensor
_DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool, torch.float16)

_RANDOM = """
    bernoulli cauchy exponential geometric log_normal multinomial normal rand_like randint_like
    randn_like uniform empty_like new_empty new_empty_strided pca_lowrank svd_lowrank
    nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d
    nn.functional.dropout3d nn.functional.feature_alpha_dropout nn.functional.rrelu
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    binomial poisson random_
"""
RANDOM = frozenset(_RANDOM.split())
"""Of what these give only the kind is compared, as of attention where there is dropout."""


def names_of_ops() -> list[str]:
    """Every name of torch's op_db that a CPU has."""
    return sorted({op.name for op in op_db if op.dtypes})


def cases_of_op(name: str) -> list[Case]:
    """A few sample inputs of a function of op_db, of all of its kinds."""
    cases = []
    for op in op_db:
        if op.name != name or not op.dtypes:
            continue
        dtype = next((each for each in _DTYPES if each in op.dtypes), None)
        if dtype is None:
            continue
        torch.manual_seed(0)
        samples = list(islice(op.sample_inputs('cpu', dtype, requires_grad=False), _MOST_SAMPLES))
        random.Random(zlib.crc32(name.encode())).shuffle(samples)
        drawn = [Case(op.op, (s.input, *s.args), dict(s.kwargs)) for s in samples]
        batches = sorted(drawn, key=_num_dims_of_batch, reverse=True)
        cases += [each for pair in zip(batches, drawn, strict=True) for each in pair]
    return cases


def variants_of_op(name: str) -> list[Case]:
    """One sample for each other form of a function: method, operator, in place, other names."""
    forms: dict[Any, None] = {}
    for op in op_db:
        if op.name == name and op.dtypes:
            forms |= dict.fromkeys(
                [op.method_variant, op.inplace_variant, op.operator_variant]
                + [op.inplace_operator_variant]
                + [form for alias in op.aliases for form in (alias.op, alias.inplace_variant)]
            )
    cases = [each for each in cases_of_op(name)[:10] if is_usable(each) and _runs(each)][:1]
    found = [Case(form, *case[1:]) for case in cases for form in forms if form is not None]
    return [case for case in found if _runs(case)]


def _runs(case: Case) -> bool:
    """Whether a call has a meaning; what is written to is a copy."""
    args, kwargs = tree_map_only(Tensor, Tensor.clone, (case.args, case.kwargs))
    try:
        case.function(*args, **kwargs)
    except Exception:
        return False
    return True


def _num_dims_of_batch(case: Case) -> int:
    """How many dimensions the first tensor has, if its first is not of one row."""
    first = tensors_of(case)[:1]
    return first[0].dim() if first and first[0].dim() and first[0].size(0) > 1 else 0


def is_random(name: str, case: Case) -> bool:
    """Whether a call draws random numbers or gives what lies in memory."""
    if 'attention' not in name:
        return name in RANDOM
    dropout = case.kwargs.get('dropout_p', 0.0)
    if len(case.args) > 12:  # of multi_head_attention_forward
        dropout = case.args[10] if case.kwargs.get('training', True) else 0.0
    return isinstance(dropout, float) and dropout > 0


def taggings(case: Case) -> Iterator[Tagging]:
    """Which tensors are rows, and in which dimension: all that fit together, then each alone.

    The first tensor comes first, and a dimension of one row only for it.
    """
    tensors = tensors_of(case)
    seen = set()
    for i, every in [(0, True), (0, False), *((i, e) for i in (1, 2, 3) for e in (True, False))]:
        for dim in range(tensors[i].dim() if i < len(tensors) else 0):
            if tensors[i].size(dim) < (1 if i == 0 and not every else 2):
                continue
            tagging: Tagging = tuple(
                dim if k == i else (_fitting(other, tensors[i], dim) if every and k > i else None)
                for k, other in enumerate(tensors)
            )
            if tagging not in seen:
                seen.add(tagging)
                yield tagging


def _fitting(other: Tensor, tensor: Tensor, dim: int) -> int | None:
    """The dimension of as many rows, at the same place from the right or from the left."""
    places = [other.dim() - tensor.dim() + dim, dim]
    for place in places:
        if 0 <= place < other.dim() and other.size(place) == tensor.size(dim):
            return place
    return None


def is_usable(case: Case) -> bool:
    """Whether a case has tensors that can be cut."""
    tensors = tensors_of(case)
    return any(t.dim() > 0 and max(t.shape, default=0) > 1 for t in tensors) and all(
        t.layout == torch.strided and t.numel() <= _LARGEST for t in tensors
    )


def described(case: Case, tagging: Tagging) -> str:
    """A case in short, for messages."""
    tensors = tensors_of(case)
    shapes = ' '.join(
        f'{list(t.shape)}' + ('' if dim is None else f'@{dim}')
        for t, dim in zip(tensors, tagging, strict=True)
    )
    rest: list[Any] = [a for a in case.args if not isinstance(a, Tensor)]
    named = {k: v for k, v in case.kwargs.items() if not isinstance(v, Tensor)}
    return f'{shapes} {rest} {named}'[:200]
