"""``launch`` forks: its cases run in a process without the threads and groups of other tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name('launch_cases.py')


@pytest.mark.slow
@pytest.mark.parametrize('marked', ['not slow', pytest.param('slow', marks=pytest.mark.slow)])
def test_in_a_process_of_its_own(marked: str) -> None:
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:xdist', '-m', marked, str(CASES)]
    done = subprocess.run(
        command,
        cwd=CASES.parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
