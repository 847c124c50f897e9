"""Every conv of PyG, in all its configurations: exact, or refused at construction."""

from __future__ import annotations

from pathlib import Path

import pytest
import table
import torch_geometric.nn.conv
from conv_cases import ALL, CASES, CHECKS, EXACT, OF_CONVS, READ_ROWS_IN_FORWARD, REFUSED_BY_DESIGN
from exact import reference
from outcome import CUTS, NO_NODES, Outcome, outcomes

IN_BLOCKS = {'SpMM', 'SpMM with learned values', 'scalar times x_j', 'softmax', 'replay'}
"""Paths that hold one block while the next one is on its way."""


CONSTANT = {'MessagePassing: integer messages'}
"""Cases without a gradient."""


@pytest.fixture(scope='module', params=['random', pytest.param('metis', marks=pytest.mark.bench)])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """What became of the cases that the session's tests ask for."""
    names = set()
    for item in request.session.items:
        if getattr(item, 'module', None) is request.module and 'found' in item.fixturenames:
            callspec = item.callspec
            names |= {callspec.params['name']} if 'name' in callspec.params else set(CASES)
    folder, cut = tmp_path_factory.mktemp('conformance'), request.param
    return outcomes(folder, [n for n in CASES if n in names], cuts={cut: CUTS[cut]})


def test_every_conv_has_a_case() -> None:
    convs = set(torch_geometric.nn.conv.__all__)
    assert not convs - {case.conv for case in ALL}, 'a new conv without a case'
    assert not {case.conv for case in ALL} - convs, 'a case of no conv'
    assert len(ALL) == len(CASES), 'two cases of one name'
    assert {case.conv for case in ALL} >= REFUSED_BY_DESIGN
    assert CASES.keys() >= READ_ROWS_IN_FORWARD


@pytest.mark.slow
@pytest.mark.parametrize('name', EXACT)
def test_case_runs_in_plain_pyg(name: str) -> None:
    """Otherwise a case that is refused today could be no case at all."""
    with CASES[name].during():
        values = reference(CASES[name])
    gradients = [value for key, value in values.items() if key.startswith('gradient')]
    assert any(gradient.any() for gradient in gradients) or name in CONSTANT


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_conformance(name: str, found: dict[str, Outcome]) -> None:
    want = 'exact' if name in EXACT else 'refused'
    assert found[name].status == want, f'{found[name].status}: {found[name].reason}'


@pytest.mark.slow
def test_a_rank_without_nodes(tmp_path: Path) -> None:
    """It takes part in every exchange all the same: a case of every conv, and all of our own."""
    names = [n for n in EXACT if n in OF_CONVS or CASES[n].conv == 'MessagePassing']
    results = outcomes(tmp_path, names, cuts=NO_NODES)
    wrong = {name: o.reason for name, o in results.items() if o.status != 'exact'}
    assert not wrong, wrong


@pytest.mark.slow
def test_rows_held_at_once(found: dict[str, Outcome]) -> None:
    """One block in use and one under way, of every tensor that is read at a source."""
    wrong = [
        (name, rank, result)
        for name, outcome in found.items()
        if outcome.status == 'exact' and set(outcome.results[0].paths) <= IN_BLOCKS
        for rank, result in enumerate(outcome.results)
        if max(result.halo, result.gradients) > 2 * result.largest_block * result.num_tensors
        or bool(result.together) != (name in READ_ROWS_IN_FORWARD)
        or result.num_live
    ]
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize('found', ['random'], indirect=True)
def test_rows_are_counted(found: dict[str, Outcome]) -> None:
    """More than one block at once, as the next one travels, and far less than the halo."""
    for name, num_tensors in {'SAGEConv: aggr=mean': 1, 'PPFConv: self loops': 3}.items():
        for result in found[name].results:
            assert result.num_tensors == num_tensors
            assert result.largest_block < result.halo / num_tensors < result.num_halo
            assert result.gradients == result.halo


@pytest.mark.bench  # as it waits for ranks that wait
def test_checks_can_fail(tmp_path: Path) -> None:
    """A wrong result, a rank that raises alone and one that waits are found; others go on."""
    results = outcomes(tmp_path, CHECKS, patience=5)
    assert results['Check: wrong'].status == 'wrong'
    for name in ('Check: one rank raises', 'Check: ranks wait'):
        assert results[name].status == 'failed'
        assert 'the ranks do not agree' in results[name].reason
    assert 'ArithmeticError after' in results['Check: one rank raises'].reason
    assert results['Check: exact'].status == 'exact'


@pytest.mark.slow
@pytest.mark.parametrize('found', ['random'], indirect=True)
def test_table_is_current(found: dict[str, Outcome]) -> None:
    assert table.written() == table.facts_of(found), 'run: make convs'


def test_page_is_that_of_the_table() -> None:
    facts = table.written()
    assert table.PATH.read_text(encoding='utf-8') == table.render(facts), 'run: make convs'
    num_exact = sum(fact['status'] == 'exact' for fact in facts)
    readme = (table.PATH.parents[1] / 'README.md').read_text(encoding='utf-8')
    assert f'{num_exact} of {len(CASES)} configurations of all convs' in ' '.join(readme.split())
