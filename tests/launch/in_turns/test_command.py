"""``python -m pyg_sar.run_in_turns`` runs a script for torchrun as it is."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from launch.in_turns.programs import NUM_RANKS, write_parts

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


MODULE = 'pyg_sar.run_in_turns'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script and a folder that looks like parts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'train.py').write_text(SCRIPT)
    (tmp_path / 'one').mkdir()
    (tmp_path / 'one' / 'META.json').touch()
    return tmp_path


def _error(words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line that a wrong command line ends in."""
    monkeypatch.setattr(sys, 'argv', [MODULE, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(MODULE, run_name='__main__')
    assert ended.value.code == 2
    error: str = capsys.readouterr().err
    assert error.count('\n') == 1
    return error


def test_a_script_runs_as_all_ranks(tmp_path: Path) -> None:
    write_parts(tmp_path)
    (tmp_path / 'train.py').write_text(SCRIPT)
    options = ['--memory', '1MB', '--spill', '.', '--parts', 'one']
    own = ['--hidden', '3', '--memory', '7', '--parts', 'mine']  # of the script, whatever it is
    done = subprocess.run(
        [sys.executable, '-m', MODULE, *options, 'train.py', *own],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert sorted(line[0] for line in lines) == ['0', '1', '2']
    assert len({(line[1], line[2]) for line in lines}) == 1
    assert lines[0][1] == str(NUM_RANKS)
    assert lines[0][3] == str(own)
    assert 'written' in done.stderr


@pytest.mark.parametrize(
    ('ending', 'code', 'text'),
    [
        ("sys.exit('error: no labels')", 1, 'error: no labels\n'),
        ('sys.exit(7)', 7, ''),
        ('sys.exit(None)', 0, ''),
        ("raise ValueError('no labels')", 1, 'ValueError: no labels\n'),
    ],
)
def test_how_a_script_ends(folder: Path, ending: str, code: int, text: str) -> None:
    """By the one command for all programs, as by itself."""
    (folder / 'one' / 'META.json').unlink()
    (folder / 'one').rmdir()
    write_parts(folder)
    (folder / 'train.py').write_text(f'import sys\n{ending}\n')
    options = ['--memory', '1MB', '--spill', '.', '--parts', 'one']
    done = subprocess.run(
        [sys.executable, '-m', 'pyg_sar', 'run-in-turns', *options, 'train.py'],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert ('Traceback' in done.stderr) == ('raise' in ending)


@pytest.mark.parametrize('missing', ['none.py', '--parts=none', '--spill=none'])
def test_what_is_missing_is_one_line(
    folder: Path, missing: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ['--memory=1MB', '--spill=.', '--parts=one', 'train.py']
    words[3 if missing.endswith('.py') else {'-s': 1, '-p': 2}[missing[1:3]]] = missing
    assert _error(words, capsys, monkeypatch).startswith('error: no such file: none')


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without a GPU')
@pytest.mark.parametrize('words', [['--spill=.', '--host-memory=1GB'], []])
def test_what_needs_a_gpu_is_one_line(
    folder: Path, words: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _error(['--memory=1MB', '--parts=one', *words, 'train.py'], capsys, monkeypatch)
    assert error.startswith("error: 'host_memory' is" if words else "error: 'spill' must be")


def test_options_after_the_script_are_the_scripts(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 'stand before SCRIPT' in _error(['train.py', '--memory=1MB'], capsys, monkeypatch)
