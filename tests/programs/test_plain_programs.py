"""Plain programs on a cut graph: equal to one process of plain PyG, or refused; never wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from few import few
from one_program import all_programs, is_hetero, on_whole_graph
from program_graphs import graph, hetero_graph, parts_of
from run_programs import PARTS, REFUSED, RIGHT, cut_run

import pyg_sar

PROGRAMS = all_programs()
NOT_COMPARED = {'autograd.partly_in_bfloat16'}
MAY_BE_REFUSED = Path(__file__).with_name('refused.txt').read_text().split()
"""At most a quarter of all; the others are right."""


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('programs')
    for hetero, data in ((False, graph()), (True, hetero_graph())):
        for num_parts in set(PARTS.values()):
            parts = parts_of(data, num_parts)
            pyg_sar.partition_graph(data, num_parts, root / f'{hetero}-{num_parts}', method=parts)
    return root


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
    'world_size',
    [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize('name', few(PROGRAMS))
def test_a_program(name: str, world_size: int, folder: Path) -> None:
    program = PROGRAMS[name]
    if name in NOT_COMPARED:
        pytest.skip('rounds')
    hetero = is_hetero(program)
    want = on_whole_graph(program, hetero_graph() if hetero else graph())
    root = str(folder / f'{hetero}-{PARTS[world_size]}')
    kind, detail = cut_run(program, want, world_size, root, 120)
    if kind == REFUSED and name in MAY_BE_REFUSED:
        return
    assert (kind, detail) == (RIGHT, '')


def test_most_programs_are_right() -> None:
    assert len(MAY_BE_REFUSED) <= len(PROGRAMS) / 4
    assert not set(MAY_BE_REFUSED) - PROGRAMS.keys()
