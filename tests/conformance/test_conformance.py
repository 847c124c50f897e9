"""Every conv of PyG, in all its configurations: exact, or refused at construction."""

from __future__ import annotations

from pathlib import Path

import pytest
import table
import torch_geometric.nn.conv
from conformance_cases import ALL, CASES, CHECKS
from conformance_expected import (
    FAILS_TODAY,
    NOT_YET,
    NOT_YET_GRAPHS,
    READ_ROWS_IN_FORWARD,
    REFUSED_BY_DESIGN,
)
from conformance_outcome import CUTS, NO_NODES, Outcome, outcomes
from conformance_run import reference

IN_BLOCKS = {'linear', 'weighted', 'softmax', 'replay'}
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


def test_lists_are_of_cases() -> None:
    assert {case.conv for case in ALL} >= REFUSED_BY_DESIGN
    assert {case.graph for case in ALL} >= NOT_YET_GRAPHS
    assert CASES.keys() >= NOT_YET | READ_ROWS_IN_FORWARD
    assert CASES.keys() >= FAILS_TODAY.keys()
    assert not NOT_YET & FAILS_TODAY.keys()


@pytest.mark.parametrize('name', [c.name for c in ALL if c.conv not in REFUSED_BY_DESIGN])
@pytest.mark.slow
def test_case_runs_in_plain_pyg(name: str) -> None:
    """Otherwise a case that is refused today could be no case at all."""
    case = CASES[name]
    with case.during():
        module, inputs, outputs = reference(case)
    assert outputs
    takes_gradient = [*inputs.leaves.values(), *module.parameters()]
    assert any(t.grad is not None and t.grad.any() for t in takes_gradient) or name in CONSTANT


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_conformance(name: str, found: dict[str, Outcome]) -> None:
    case, outcome = CASES[name], found[name]
    if case.conv in REFUSED_BY_DESIGN:
        assert outcome.status == 'refused', outcome.reason
    elif name in NOT_YET or case.graph in NOT_YET_GRAPHS:
        assert outcome.status != 'exact', f"it is exact: take '{name}' off the list"
        assert outcome.status in ('refused', 'not yet'), outcome.reason
    elif name in FAILS_TODAY:
        assert outcome.status != 'exact', f"it is exact: take '{name}' off the list"
        pytest.xfail(FAILS_TODAY[name])
    else:
        assert outcome.status == 'exact', f'{outcome.status}: {outcome.reason}'


@pytest.mark.slow
def test_a_rank_without_nodes(tmp_path: Path) -> None:
    """It takes part in every exchange all the same: a case of every conv, and all of our own."""
    others = NOT_YET | FAILS_TODAY.keys()
    cases = [
        case
        for case in ALL
        if case.conv not in REFUSED_BY_DESIGN
        and case.graph not in NOT_YET_GRAPHS
        and case.name not in others
    ]
    of_convs = {case.conv: case.name for case in reversed(cases)}
    names = [c.name for c in cases if c.conv == 'MessagePassing' or of_convs[c.conv] == c.name]
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
    assert table.PATH.read_text(encoding='utf-8') == table.render(found), 'run: make convs'
