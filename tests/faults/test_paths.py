"""A rank is lost in an operation of every path, mode and phase, and of every function."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from path_cells import FAULTY, SUM, TIMEOUT, End, PathCell, run_cells
from path_programs import CONVS, MODES, OTHERS, place_of
from ranks import run_once
from small_graphs import cut, small_graph

QUICK = [
    PathCell('batch norm', 'sequential', 'backward', 'killed', 0),
    PathCell('restrict', 'sequential', '', 'killed', 0),
    # A rank that waits for one that waits for the killed one: nothing may hold its connections.
    PathCell('restrict', 'sequential', '', 'killed', 1),
    PathCell('reversed, edge features', 'sequential', 'backward', 'killed', 1),
    PathCell('linear', 'sequential', SUM, 'stopped', 0),
]
PHASES = ('forward', 'backward')
MOMENTS = (('killed', 0.0), ('killed', 1.0), ('stopped', 0.5))
NORMS = ('batch norm', 'graph norm')
PLACES = [
    *((name, mode, phase) for name in CONVS for mode in MODES for phase in PHASES),
    *((name, MODES[0], phase) for name in NORMS for phase in PHASES),
    *((name, MODES[0], 'forward') for name in ('first forward', 'kept sum')),
    ('linear', MODES[0], SUM),
    *(
        (name, MODES[0], '')
        for name, (_, where) in OTHERS.items()
        if where and 'layer' not in where
    ),
]
ONE_OF_EACH = [PathCell(*place, *MOMENTS[i % len(MOMENTS)]) for i, place in enumerate(PLACES)]
"""One moment of every place, in turn."""

SLACK = 20.0  # seconds, on a busy machine
NUM_GROUPS = 4


def path_outcomes(cells: list[PathCell], folder: Path) -> dict[PathCell, list[End]]:
    """How ranks 0 and 1 end in every cell."""
    folder.mkdir(exist_ok=True)
    root = cut(small_graph(), 3, folder / 'parts')

    def of_group(group: int) -> list[tuple[PathCell, list[End]]]:
        own = folder / f'group-{group}'
        shutil.copytree(root, own / 'parts')
        mine = cells[group::NUM_GROUPS]
        first, second, _ = run_once(run_cells, 3, str(own / 'parts'), mine, timeout=1800)
        return list(zip(mine, zip(first, second, strict=True), strict=True))

    with ThreadPoolExecutor(NUM_GROUPS) as pool:
        return {
            cell: list(ends)
            for found in pool.map(of_group, range(NUM_GROUPS))
            for cell, ends in found
        }


def check(cell: PathCell, ends: list[End]) -> None:
    for end in ends:
        assert end.kind == 'ExchangeError', (cell, end)
        assert end.peer == FAULTY, (cell, end)
        assert end.seconds < SLACK + (TIMEOUT if cell.fault == 'stopped' else 0), (cell, end)
        how = 'was silent for too long' if cell.fault == 'stopped' else 'has ended or is cut off'
        assert f'rank {FAULTY} {how}' in end.text, (cell, end)
        assert end.operation, (cell, end)
        if cell.when == 0 and cell.phase != SUM:  # later ones may be the last that others need
            assert end.layer == place_of(cell.program, cell.phase), (cell, end)


@pytest.mark.parametrize(
    'cells',
    [
        pytest.param(QUICK, marks=pytest.mark.slow, id='some'),
        pytest.param(ONE_OF_EACH, marks=pytest.mark.bench, id='every path and function'),
    ],
)
def test_the_others_end(cells: list[PathCell], tmp_path: Path) -> None:
    for cell, ends in path_outcomes(cells, tmp_path).items():
        check(cell, ends)
