"""``pyg-sar run --in-turns`` runs a script for torchrun as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launch.in_turns.programs import NUM_RANKS, write_parts

from pyg_sar.__main__ import main

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

COMMAND = [sys.executable, '-m', 'pyg_sar', 'run', '--in-turns']


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script and parts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'train.py').write_text(SCRIPT)
    write_parts(tmp_path)
    return tmp_path


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    """The script as all ranks."""
    options = ['--memory', '1MB', '--spill', '.', '--parts', 'one']
    return subprocess.run(
        [*COMMAND, *options, 'train.py', *words],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def _error(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a wrong command line ends in."""
    try:
        code: object = main(['run', '--in-turns', *words])
    except SystemExit as ended:
        code = ended.code
    error = capsys.readouterr().err
    assert (code, error.count('\n')) == (2, 1)
    return error


def test_a_script_runs_as_all_ranks(folder: Path) -> None:
    own = ['--hidden', '3', '--memory', '7', '--parts', 'mine']  # of the script, whatever it is
    done = _run(*own)
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
    (folder / 'train.py').write_text(f'import sys\n{ending}\n')
    done = _run()
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert ('Traceback' in done.stderr) == ('raise' in ending)


@pytest.mark.parametrize(
    ('words', 'told'),
    [
        (['none.py'], 'no such file: none.py'),
        (['--parts=none', 'train.py'], "expected a partition folder at 'none' (got no folder)"),
        (['--spill=none', 'train.py'], "evicted memory): 'none'"),
        (['--nproc-per-node=3', 'train.py'], 'no options of torchrun (got --nproc-per-node)'),
        (['--memory=64', 'train.py'], '64 bytes? say 64GB'),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in _error(['--memory=1MB', '--spill=.', '--parts=one', *words], capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without a GPU')
def test_without_a_gpu_a_folder_is_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = _error(['--memory=1MB', '--parts=one', 'train.py'], capsys)
    assert error.startswith("error: 'spill' must be")


def test_options_after_the_script_are_the_scripts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 'needs --memory SIZE before' in _error(['train.py', '--memory=1MB'], capsys)
