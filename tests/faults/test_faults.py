"""A rank fails: the others end soon, with an error that names it, the layer and the operation."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_cells import CELLS, Cell, Outcome, bound, is_silent, outcomes
from fault_program import FAULTS, FAULTY, SUM
from pairs import covering
from path_programs import CONVS, MODES, OTHERS, place_of

QUICK = [
    Cell('killed', 'load'),
    Cell('killed', 'forward'),
    Cell('stopped', 'forward'),
    Cell('raises, lives on', 'forward'),
    Cell('out of memory', 'backward'),
    Cell('shape', 'construction'),
]
SOME_PATHS = [
    Cell('killed', 'backward', program='batch norm'),
    Cell('killed', '', program='restrict'),
    # A rank that waits for one that waits for the killed one: nothing may hold its connections.
    Cell('killed', '', program='restrict', when=1),
    Cell('killed', 'backward', program='reversed, edge features', when=1),
    Cell('stopped', SUM, program='linear'),
]
MOMENTS = (('killed', 0.0), ('killed', 1.0), ('stopped', 0.5))
PLACES = [
    *covering(CONVS, MODES, ('forward', 'backward')),
    *(
        (name, MODES[0], phase)
        for name in ('batch norm', 'graph norm')
        for phase in ('forward', 'backward')
    ),
    *((name, MODES[0], 'forward') for name in ('first forward', 'kept sum')),
    ('linear', MODES[0], SUM),
    *((n, MODES[0], '') for n, (_, where) in OTHERS.items() if where and 'layer' not in where),
]
EVERY_PATH = [
    Cell(fault, phase, 'gloo', name, mode, when)
    for (name, mode, phase), (fault, when) in zip(PLACES, MOMENTS * len(PLACES), strict=False)
]
"""One moment of every place, in turn."""


@pytest.fixture(scope='module')
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Outcome]:
    return outcomes(QUICK, tmp_path_factory.mktemp('quick'), at_once=len(QUICK))


@pytest.mark.parametrize('cell', QUICK, ids=lambda c: f'{c.fault} in {c.phase}')
def test_the_others_end(quick: dict[Cell, Outcome], cell: Cell) -> None:
    check(cell, quick[cell])


@pytest.mark.slow
def test_some_paths(tmp_path: Path) -> None:
    _check_all(SOME_PATHS, tmp_path)


@pytest.mark.bench
@pytest.mark.parametrize('fault', FAULTS)
def test_every_phase(fault: str, tmp_path: Path) -> None:
    _check_all([cell for cell in CELLS if cell.fault == fault], tmp_path)


@pytest.mark.bench
def test_every_path_and_function(tmp_path: Path) -> None:
    _check_all(EVERY_PATH, tmp_path)


def _check_all(cells: list[Cell], folder: Path) -> None:
    for cell, outcome in outcomes(cells, folder, at_once=4).items():
        check(cell, outcome)


def check(cell: Cell, outcome: Outcome) -> None:
    """The others have ended in time, by themselves and not well, and say what is known."""
    # 255 is what multiprocessing gives where its fork server has not told how a process ended.
    assert set(outcome.exit_codes) <= {1, 255}, (cell, outcome)
    assert outcome.seconds < bound(cell), (cell, outcome)
    for end in outcome.ends:
        assert f'rank {FAULTY}' in end['text'], (cell, outcome)
        if end['type'] != 'ExchangeError':
            # Found by comparing, or a failure that is told to all.
            assert end['type'] in ('ValueError', 'FileNotFoundError'), (cell, outcome)
            assert not cell.program
            assert cell.phase in ('load', 'construction') or cell.fault == 'shape'
            continue
        assert end['peer'] == FAULTY, (cell, outcome)
        assert 'stopped at' in end['text']
        assert ('was silent' in end['text']) == is_silent(cell), (cell, outcome)
        if cell.program:
            how = 'was silent for too long' if is_silent(cell) else 'has ended or is cut off'
            assert f'rank {FAULTY} {how}' in end['text'], (cell, outcome)
            assert end['operation'], (cell, outcome)
            if cell.when == 0 and cell.phase != SUM:  # later ones may be the last others need
                assert end['layer'] == place_of(cell.program, cell.phase), (cell, outcome)
        elif cell.phase == 'forward' and cell.fault != 'shape':
            # The rows that a killed rank has sent, and that nobody has read yet, are gone with it.
            layers = ["layer 'convs.2'", "layer 'convs.1'"][: 1 + (cell.fault == 'killed')]
            assert end['layer'].startswith(tuple(layers)), (cell, outcome)
            assert end['layer'].endswith('forward')
        elif cell.phase == 'backward' and end['layer']:
            assert end['layer'].endswith('backward'), (cell, outcome)
