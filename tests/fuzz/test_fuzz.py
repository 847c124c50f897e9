"""Thousands of damaged files, in a process of its own: one that dies is a defect, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / 'fuzzer.py'


def _run(tmp_path: Path, cases: int, seed: int) -> None:
    command = [sys.executable, str(FUZZER), str(cases), f'--seed={seed}', f'--out={tmp_path}']
    done = subprocess.run(command, capture_output=True, text=True)
    case = tmp_path / 'fuzz' / 'case'
    last = case.read_text() if case.exists() else 'none'
    assert done.returncode == 0, f'last case {last} of seed {seed}\n{done.stdout}{done.stderr}'
    assert f'{cases} cases of seed {seed}' in done.stdout


@pytest.mark.slow
def test_damaged_files(tmp_path: Path) -> None:
    _run(tmp_path, 150, 1)


@pytest.mark.bench
def test_ten_thousand_damaged_files(tmp_path: Path) -> None:
    _run(tmp_path, 10_000, 0)
