"""Options together: every pair of their values, and the losses of one process without any."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
from golden_runs import RUNS, Run, trained
from ranks import run_ranks
from small_graphs import cut, small_graph

VALUES: dict[str, tuple[Any, ...]] = {
    'conv': ('SAGE', 'GAT', 'PNA', 'Transformer'),
    'world_size': (3, 1),
    'steps': (1, 2),
    'mode': ('sequential', 'sequential_no_remat', 'one_shot'),
    'partial_sums': (True, False),
}
MEANINGLESS = {'one_shot': {'partial_sums': True}}


def _pairs(case: dict[str, Any]) -> set[Any]:
    return set(combinations(case.items(), 2))


def covering() -> list[dict[str, Any]]:
    """Few cases in which every pair of values is; each next one has the most new pairs."""
    every = [dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())]
    every = [case | MEANINGLESS.get(case['mode'], {}) for case in every]
    left, cases = set().union(*map(_pairs, every)), []
    while left:
        cases.append(max(every, key=lambda case: len(_pairs(case) & left)))
        left -= _pairs(cases[-1])
    return cases


def _losses(root: str, case: dict[str, Any]) -> list[float]:
    options = {name: case[name] for name in list(VALUES)[3:]}
    return trained(root, _run(case)._replace(options={'dropout_seed': 5, **options}))


def _control(root: str, case: dict[str, Any]) -> list[float]:
    return trained(root, _run(case)._replace(options={'dropout_seed': 5}))


def _run(case: dict[str, Any]) -> Run:
    return RUNS[case['conv']]._replace(steps=case['steps'])


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 3, tmp_path_factory.mktemp('pairs') / 'parts'))


@pytest.mark.parametrize('case', covering(), ids=lambda case: '-'.join(map(str, case.values())))
def test_options_together(root: str, case: dict[str, Any]) -> None:
    (control,) = run_ranks(_control, 1, root, case)
    for found in run_ranks(_losses, case['world_size'], root, case):
        assert found == pytest.approx(control, rel=1e-10)
