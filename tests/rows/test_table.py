"""Functions of torch on rows of three ranks: equal to the whole, with gradients, or refused."""

from __future__ import annotations

import ops_table
import pytest
import torch
from few import few
from op_outcomes import names, outcome_of
from ops_table import PATH, render, told, told_of, written

NUM_PARTS = 64
NAMES = names()
FACTS = written()
TOLD = told(FACTS)
IS_OF_THIS_TORCH = torch.__version__.partition('+')[0] == FACTS['torch']


@pytest.mark.parametrize('part', few(range(NUM_PARTS), every=16))
def test_functions_are_right_or_refused_as_the_page_says(part: int) -> None:
    found = [outcome_of(name) for name in NAMES[part::NUM_PARTS]]
    assert not [f'{each.name}: {failure}' for each in found for failure in each.failures]
    if IS_OF_THIS_TORCH:
        assert {each.name: told_of(each) for each in found} == {
            each.name: TOLD.get(each.name) for each in found
        }, 'ops_table.json is out of date: make ops'


def test_page_is_that_of_the_table() -> None:
    assert PATH.read_text(encoding='utf-8') == render(FACTS), 'make ops'


@pytest.mark.skipif(not IS_OF_THIS_TORCH, reason='ops_table.json is of another torch')
def test_page_tells_of_every_function() -> None:
    assert TOLD.keys() >= set(NAMES)
    others = ops_table.kinds_of_others(set())
    assert TOLD.keys() >= {*others['reads'], *others['unknown']}
    assert 'wrong' not in TOLD.values()
    assert 'fails' not in TOLD.values()


def test_most_functions_are_known() -> None:
    known = [each for each in TOLD.values() if each.startswith(('everywhere', 'in part'))]
    assert len(known) >= 320
