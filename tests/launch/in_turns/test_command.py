"""``pyg-sar run --in-turns`` runs a script for torchrun as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch.in_turns.programs import NUM_RANKS, write_parts
from pages import launch_of, start

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


def _run(folder: Path, script: str, words: str = '') -> tuple[int | None, str, str]:
    """The exit code and the output of a script as all ranks."""
    write_parts(folder)
    (folder / 'train.py').write_text(script)
    options = '--in-turns --memory 1MB --spill . --parts one'
    ((process, said, _),) = start(launch_of(f'pyg-sar run {options} train.py {words}'), folder, 0)
    process.join(timeout=300)
    return process.exitcode, said.read_text(), said.with_suffix('.err').read_text()


def test_a_script_runs_as_all_ranks(tmp_path: Path) -> None:
    own = '--hidden 3 --memory 7 --parts mine'  # of the script, whatever it is
    code, out, err = _run(tmp_path, SCRIPT, own)
    assert code == 0, err
    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    assert sorted(line[0] for line in lines) == ['0', '1', '2']
    assert len({(line[1], line[2]) for line in lines}) == 1
    assert lines[0][1] == str(NUM_RANKS)
    assert lines[0][3] == str(own.split())
    assert 'written' in err


@pytest.mark.parametrize(
    ('ending', 'code', 'text'),
    [
        ("sys.exit('error: no labels')", 1, 'error: no labels\n'),
        ('sys.exit(7)', 7, ''),
        ('sys.exit(None)', 0, ''),
        ("raise ValueError('no labels')", 1, 'ValueError: no labels\n'),
    ],
)
def test_how_a_script_ends(tmp_path: Path, ending: str, code: int, text: str) -> None:
    found, _, err = _run(tmp_path, f'import sys\n{ending}\n')
    assert found == code, err
    assert text in err
    assert ('Traceback' in err) == ('raise' in ending)
