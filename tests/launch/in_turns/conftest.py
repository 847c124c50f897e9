"""The graphs of programs.py, for all tests of ranks in turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch.in_turns.programs import write_parts


@pytest.fixture(scope='session')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp('parts')
    write_parts(found)
    return found
