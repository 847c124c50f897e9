"""``launch`` forks: its cases run in a process without the threads and groups of other tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from started import ROOT, run

CASES = Path(__file__).with_name('launch_cases.py')


@pytest.mark.slow
def test_in_a_process_of_its_own() -> None:
    done = run(['python', '-m', 'pytest', '-q', '-p', 'no:xdist', CASES], folder=ROOT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
