"""``python -m pyg_sar.run_in_turns`` runs a script for torchrun as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from in_turns.programs import NUM_RANKS, write_parts

SCRIPT = """
import sys
import pyg_sar

if __name__ == '__main__':
    process = pyg_sar.init()
    data = pyg_sar.load_shard('one')
    total = data.x[:, 0].sum().item()
    print(process.rank, process.world_size, f'{total:.9f}', sys.argv[1:])
    sys.exit(0)
"""


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'pyg_sar.run_in_turns', *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_script_runs_as_all_ranks(tmp_path: Path) -> None:
    write_parts(tmp_path)
    (tmp_path / 'train.py').write_text(SCRIPT)
    options = ['--memory', '1MB', '--spill', '.', '--parts', 'one']
    own = ['--hidden', '3', '--memory', '7', '--parts', 'mine']  # of the script, whatever it is
    done = _run(tmp_path, *options, 'train.py', *own)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert sorted(line[0] for line in lines) == ['0', '1', '2']
    assert len({(line[1], line[2]) for line in lines}) == 1
    assert lines[0][1] == str(NUM_RANKS)
    assert lines[0][3] == str(own)
    assert 'written' in done.stderr


@pytest.mark.parametrize('missing', ['none.py', '--parts=none', '--spill=none'])
def test_what_is_missing_is_one_line(tmp_path: Path, missing: str) -> None:
    (tmp_path / 'train.py').write_text(SCRIPT)
    (tmp_path / 'one').mkdir()
    (tmp_path / 'one' / 'META.json').touch()
    words = ['--memory=1MB', '--spill=.', '--parts=one', 'train.py']
    words[3 if missing.endswith('.py') else {'-s': 1, '-p': 2}[missing[1:3]]] = missing
    done = _run(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith('error: no such file: none')
    assert done.stderr.count('\n') == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without a GPU')
@pytest.mark.parametrize('words', [['--spill=.', '--host-memory=1GB'], []])
def test_what_needs_a_gpu_is_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / 'train.py').write_text(SCRIPT)
    (tmp_path / 'one').mkdir()
    (tmp_path / 'one' / 'META.json').touch()
    done = _run(tmp_path, '--memory=1MB', '--parts=one', *words, 'train.py')
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'host_memory' is" if words else "error: 'spill' must be")
    assert done.stderr.count('\n') == 1


def test_options_after_the_script_are_the_scripts(tmp_path: Path) -> None:
    done = _run(tmp_path, 'train.py', '--memory=1MB')
    assert done.returncode == 2
    assert 'stand before SCRIPT' in done.stderr
