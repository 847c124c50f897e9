"""A rank is lost in an operation of every path, mode and phase, and of every function."""

from __future__ import annotations

from pathlib import Path

import pytest
from path_cells import SUM, PathCell
from path_outcomes import CELLS, MOMENTS, check, path_outcomes

QUICK = [
    PathCell('batch norm', 'sequential', 'backward', 'killed', 0),
    PathCell('restrict', 'sequential', '', 'killed', 0),
    # A rank that waits for one that waits for the killed one: nothing may hold its connections.
    PathCell('restrict', 'sequential', '', 'killed', 1),
    PathCell('reversed, edge features', 'sequential', 'backward', 'killed', 1),
    PathCell('linear', 'sequential', SUM, 'stopped', 0),
]
ONE_OF_EACH = [
    CELLS[i + i // len(MOMENTS) % len(MOMENTS)] for i in range(0, len(CELLS), len(MOMENTS))
]
"""One moment of every place, in turn; ``make faults`` goes through all."""


@pytest.mark.slow
def test_some(tmp_path: Path) -> None:
    for cell, ends in path_outcomes(QUICK, tmp_path).items():
        check(cell, ends)


@pytest.mark.bench
def test_every_path_and_function(tmp_path: Path) -> None:
    for cell, ends in path_outcomes(ONE_OF_EACH, tmp_path).items():
        check(cell, ends)
