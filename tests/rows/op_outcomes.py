"""What becomes of every function with rows: over torch's own samples of it, and all dimensions."""

from __future__ import annotations

import random
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from op_hand import by_hand
from op_run import Case, Tagging, tensors_of, verdict_of, whole_of
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map_only

from pyg_sar.rows import registry
from pyg_sar.rows.rows import Rows

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
    binomial dropout1d poisson random_
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


@dataclass
class Outcome:
    """What became of one function.

    Attributes:
        by_dim: How many cases had which end, by the dimension of the first rows among them.
        failures: Cases that are WRONG or an error of the ranks alone.
        refusals: Cases that are refused, with the reason.
        family_by_function: Files of their rules, by the names of the functions.
    """

    name: str
    by_dim: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    family_by_function: dict[str, str] = field(default_factory=dict)

    @property
    def reached(self) -> list[str]:
        """Functions of torch that met rows on the way."""
        return sorted(self.family_by_function)

    @property
    def families(self) -> list[str]:
        """Files of the rules of these functions."""
        return sorted(set(self.family_by_function.values()))

    @property
    def status(self) -> str:
        """``right``, ``by dimension``, ``refused``, ``fails``, or ``no rows`` without a case."""
        total = sum(self.by_dim.values(), Counter())
        if self.failures:
            return 'fails'
        if not total:
            return 'no rows'
        if not total['refused']:
            return 'right'
        return 'by dimension' if total['right'] else 'refused'


def names() -> list[str]:
    """Functions of op_db, and those with a case written by hand."""
    of_ops = names_of_ops()
    last = {name.rpartition('.')[2] for name in of_ops}
    return sorted({*of_ops, *(name for name in by_hand() if name not in last)})


def outcome_of(name: str) -> Outcome:
    """Runs all cases of a function."""
    outcome = Outcome(name)
    with _noting(outcome), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        num_cases = 0
        for case in by_hand().get(name.rpartition('.')[2], []):
            assert _run(outcome, case), f'a case of {name} fails on the whole'
        for case in cases_of_op(name):
            if num_cases < NUM_SAMPLES and is_usable(case):
                num_cases += _run(outcome, case)
        for case in variants_of_op(name):
            _run(outcome, case, RUNS_OF_A_VARIANT)
    return outcome


def _run(outcome: Outcome, case: Case, limit: int = RUNS_OF_A_SAMPLE) -> bool:
    try:
        whole = whole_of(case)
    except Exception:
        try:
            whole = whole_of(case, with_grads=False)
        except Exception:
            return False
    if any(isinstance(t, torch.Tensor) and t.layout != torch.strided for t in whole.leaves):
        return False
    draws, tensors = is_random(outcome.name, case), tensors_of(case)
    for number, tagging in enumerate(islice(taggings(case), limit)):
        verdict = verdict_of(case, tagging, whole, has_empty=number % 3 == 1, is_random=draws)
        at = next(i for i, each in enumerate(tagging) if each is not None)
        dim = tagging[at]
        assert dim is not None
        # What is broadcast is no graph of one node; a plain tensor is not written to by rows.
        is_odd = tensors[at].size(dim) == 1 or (whole.is_in_place and tagging[0] is None)
        if verdict.status == 'refused' and is_odd:
            continue
        outcome.by_dim[dim][verdict.status] += 1
        if verdict.status != 'right':
            named = getattr(case.function, '__name__', '')
            to = outcome.refusals if verdict.status == 'refused' else outcome.failures
            to.append(f'{verdict.status}: {named} {described(case, tagging)}: {verdict.why}')
    return True


@contextmanager
def _noting(outcome: Outcome) -> Iterator[None]:
    """Notes which functions of torch ask for a rule."""
    found: dict[str, str] = {}
    called = Rows.__torch_function__

    def noted(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = registry.rule_of(func)
        family = rule.__module__.rpartition('.')[2]
        # The short ways of rows.py are those of functions that work number by number.
        found[registry.bare_name(func)] = 'pointwise' if family == 'rows' else family
        return called(func, types, args, kwargs)

    Rows.__torch_function__ = classmethod(noted)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Rows.__torch_function__ = classmethod(called.__func__)  # type: ignore[attr-defined,method-assign,assignment]
        outcome.family_by_function = found
