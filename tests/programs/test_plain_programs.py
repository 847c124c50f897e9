"""Plain programs on a cut graph: equal to one process of plain PyG, or refused; never wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from few import few
from one_program import all_programs
from run_programs import REFUSED, RIGHT, folders_of, outcome


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('programs')
    folders_of(folder)
    return folder


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(
    'world_size',
    [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize('name', few(all_programs(), every=2))
def test_a_program(name: str, world_size: int, root: Path) -> None:
    kind, detail = outcome(name, world_size, root)
    if name.startswith('refused.'):
        assert kind in (REFUSED, RIGHT)
    else:
        assert (kind, detail) == (RIGHT, '')
