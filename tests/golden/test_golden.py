"""Losses are those that were kept: their bits on the same versions, and 1e-6 elsewhere."""

from __future__ import annotations

import json

import pytest
from golden_runs import FILE, RUNS, losses, versions
from ranks import run_ranks
from small_graphs import cut, small_graph

KEPT = json.loads(FILE.read_text())


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 3, tmp_path_factory.mktemp('golden') / 'parts'))


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('name', RUNS)
def test_losses_are_those_that_were_kept(root: str, name: str, world_size: int) -> None:
    found, *others = run_ranks(losses, world_size, root, name)
    kept = KEPT[name][str(world_size)]
    if not RUNS[name].samples:
        assert all(other == found for other in others)
    if KEPT['versions'] == versions():
        assert found == kept, "a change of bits is a line of CHANGELOG; 'make golden' writes them"
    assert found == pytest.approx(kept, rel=1e-6)


def test_one_process_and_three_agree() -> None:
    for name, run in RUNS.items():
        if not run.samples and 'exchange_dtype' not in run.options:
            assert KEPT[name]['1'] == pytest.approx(KEPT[name]['3'], rel=1e-10), name
