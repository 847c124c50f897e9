"""A rank fails: the others end soon, with an error that names it, the layer and the operation."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_cells import CELLS, Cell, Outcome, bound, is_silent, outcomes
from fault_program import FAULTS, FAULTY

QUICK = [
    Cell('killed', 'load'),
    Cell('killed', 'forward'),
    Cell('stopped', 'forward'),
    Cell('raises, lives on', 'forward'),
    Cell('out of memory', 'backward'),
    Cell('shape', 'construction'),
]


@pytest.fixture(scope='module')
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Outcome]:
    return outcomes(QUICK, tmp_path_factory.mktemp('quick'), at_once=len(QUICK))


@pytest.mark.parametrize('cell', QUICK, ids=lambda c: f'{c.fault} in {c.phase}')
def test_the_others_end(quick: dict[Cell, Outcome], cell: Cell) -> None:
    check(cell, quick[cell])


@pytest.mark.bench
@pytest.mark.parametrize('fault', FAULTS)
def test_every_phase(fault: str, tmp_path: Path) -> None:
    for cell, outcome in outcomes([c for c in CELLS if c.fault == fault], tmp_path).items():
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
            assert cell.phase in ('load', 'construction') or cell.fault == 'shape'
            continue
        assert end['peer'] == FAULTY, (cell, outcome)
        assert 'stopped at' in end['text']
        assert ('was silent' in end['text']) == is_silent(cell), (cell, outcome)
        if cell.phase == 'forward' and cell.fault != 'shape':
            # The rows that a killed rank has sent, and that nobody has read yet, are gone with it.
            layers = ["layer 'convs.2'", "layer 'convs.1'"][: 1 + (cell.fault == 'killed')]
            assert end['layer'].startswith(tuple(layers)), (cell, outcome)
            assert end['layer'].endswith('forward')
        if cell.phase == 'backward' and end['layer']:
            assert end['layer'].endswith('backward'), (cell, outcome)
