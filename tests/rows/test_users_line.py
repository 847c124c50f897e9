"""Which line is told: that of the user's program, wherever it lies."""

from __future__ import annotations

import runpy
import threading
import warnings
from pathlib import Path

import pytest

PROGRAM = """
from pyg_sar.comm.errors import users_line, warn
found = users_line()
warn('as told')
"""


@pytest.mark.parametrize('folder', ['multithreading', 'threading', 'plain'])
@pytest.mark.parametrize('in_thread', [False, True])
def test_in_folders_of_any_name(tmp_path: Path, folder: str, in_thread: bool) -> None:
    path = tmp_path / folder / 'train.py'
    path.parent.mkdir()
    path.write_text(PROGRAM)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        if in_thread:
            thread = threading.Thread(target=lambda: found.append(runpy.run_path(str(path))))
            thread.start()
            thread.join()
        else:
            found.append(runpy.run_path(str(path)))
    assert found[0]['found'] == (str(path), 3)
    assert [(each.filename, each.lineno) for each in caught] == [(str(path), 4)]
