"""What becomes of every function with rows, over all of its cases and dimensions."""

from __future__ import annotations

import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from op_hand import HAND
from op_run import Case, verdict_of, whole_of
from op_samples import (
    NUM_SAMPLES,
    RUNS_OF_A_SAMPLE,
    cases_of_op,
    described,
    is_random,
    is_usable,
    names_of_ops,
    taggings,
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
        reached: Functions of torch that met rows on the way.
        families: Files of their rules.
    """

    name: str
    by_dim: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    families: list[str] = field(default_factory=list)

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
    return sorted({*names_of_ops(), *HAND})


def outcome_of(name: str) -> Outcome:
    """Runs all cases of a function."""
    outcome = Outcome(name)
    with _noting(outcome), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        num_cases = 0
        for case in [*cases_of_op(name), *HAND.get(name, list)()]:
            is_by_hand = getattr(case.function, '__module__', '') == 'op_hand'
            if (num_cases < NUM_SAMPLES or is_by_hand) and is_usable(case):
                num_cases += _run(outcome, case)
    return outcome


def _run(outcome: Outcome, case: Case) -> bool:
    try:
        whole = whole_of(case)
    except Exception:
        try:
            whole = whole_of(case, with_grads=False)
        except Exception:
            return False
    if any(isinstance(t, torch.Tensor) and t.layout != torch.strided for t in whole.leaves):
        return False
    draws = is_random(outcome.name, case)
    for number, tagging in enumerate(islice(taggings(case), RUNS_OF_A_SAMPLE)):
        verdict = verdict_of(case, tagging, whole, has_empty=number % 3 == 1, is_random=draws)
        dim = next(each for each in tagging if each is not None)
        outcome.by_dim[dim][verdict.status] += 1
        if verdict.status != 'right':
            to = outcome.refusals if verdict.status == 'refused' else outcome.failures
            to.append(f'{verdict.status}: {described(case, tagging)}: {verdict.why}')
    return True


@contextmanager
def _noting(outcome: Outcome) -> Iterator[None]:
    """Notes which functions of torch ask for a rule."""
    found: dict[str, str] = {}
    # `pyg_sar.rows` is also a function of this name.
    rows_module = sys.modules[Rows.__module__]
    rule_of = rows_module.rule_of

    def noted(func: Any) -> Any:
        rule = rule_of(func)
        found[registry.bare(registry.name_of(func))] = rule.__module__.rpartition('.')[2]
        return rule

    rows_module.rule_of = noted  # type: ignore[attr-defined]
    try:
        yield
    finally:
        rows_module.rule_of = rule_of
        outcome.reached, outcome.families = sorted(found), sorted(set(found.values()))
