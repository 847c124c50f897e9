"""What becomes of every function with rows, over all of its cases and dimensions."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from op_hand import by_hand
from op_run import Case, tensors_of, verdict_of, whole_of
from op_samples import (
    NUM_SAMPLES,
    RUNS_OF_A_SAMPLE,
    RUNS_OF_A_VARIANT,
    cases_of_op,
    described,
    is_random,
    is_usable,
    names_of_ops,
    taggings,
    variants_of_op,
)

from pyg_sar.rows import registry
from pyg_sar.rows.rows import Rows


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
