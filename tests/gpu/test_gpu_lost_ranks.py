"""A rank that is lost under NCCL ends the others as one under gloo does: ExchangeError, in time."""

from __future__ import annotations

import pytest
from fault_cells import Cell, Outcome, outcomes
from fault_program import FAULTY, GROUP_TIMEOUT, PHASES, TIMEOUT

pytestmark = pytest.mark.cuda_sim
BESIDE_GLOO, ALONE = 'cpu:gloo,cuda:nccl', 'nccl'
CELLS = [
    *(Cell(f, p, backend=BESIDE_GLOO) for f in ('killed', 'stopped', 'raises') for p in PHASES),
    *(Cell(f, p, backend=ALONE) for f in ('killed', 'stopped') for p in ('forward', 'backward')),
]


@pytest.fixture(scope='module')
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Outcome]:
    return outcomes(CELLS, tmp_path_factory.mktemp('lost'), at_once=4)


@pytest.mark.parametrize('cell', CELLS, ids=lambda c: f'{c.fault} in {c.phase}, {c.backend}')
def test_the_others_end(found: dict[Cell, Outcome], cell: Cell) -> None:
    outcome = found[cell]
    assert set(outcome.exit_codes) <= {1, 255}, outcome
    limit = GROUP_TIMEOUT if cell.phase in ('load', 'construction') else TIMEOUT
    assert outcome.seconds < limit + 1, outcome
    for end in outcome.ends:
        if cell.phase == 'load' and cell.fault == 'raises':
            assert end['type'] == 'ValueError', outcome
        else:
            assert (end['type'], end['peer']) == ('ExchangeError', FAULTY), outcome
        assert f'rank {FAULTY}' in end['text'], outcome
