"""``pyg-sar run``: the program gets the environment that makes it fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyg_sar.launch.fast_start import allocator_library, fast_environment

PROGRAM = """
import json, os, sys
names = ('RANK', 'WORLD_SIZE', 'OMP_NUM_THREADS', 'LD_PRELOAD', 'GOMP_SPINCOUNT')
has = any('libmimalloc' in line for line in open('/proc/self/maps'))
text = json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}, has])
os.write(1, f'{text}\\n'.encode())  # in one piece, beside another rank
sys.exit(int(sys.argv[1]))
"""
OURS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'GOMP_SPINCOUNT', 'LD_PRELOAD', 'OMP_WAIT_POLICY')
CORES = len(os.sched_getaffinity(0))


def _run(path: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    script = path / 'program.py'
    script.write_text(PROGRAM)
    command = [sys.executable, '-m', 'pyg_sar', 'run', *options, str(script)]
    plain = {name: value for name, value in os.environ.items() if name not in OURS}
    return subprocess.run(
        [*command, '7' if not options else '0', '--hidden', '8'],
        env=plain | environ,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_one_process(tmp_path: Path) -> None:
    """Without options it is no torchrun; arguments, output and exit code are the program's."""
    done = _run(tmp_path)
    assert done.returncode == 7, done.stderr
    arguments, environ, has_allocator = json.loads(done.stdout)
    assert arguments == ['7', '--hidden', '8']
    assert environ == {
        'RANK': None,
        'WORLD_SIZE': None,
        'OMP_NUM_THREADS': str(CORES),
        'LD_PRELOAD': allocator_library(),
        'GOMP_SPINCOUNT': '10000',
    }
    assert has_allocator == (allocator_library() is not None)
    (line,) = [
        line for line in done.stderr.splitlines() if line.startswith('python -m pyg_sar run:')
    ]
    assert f'OMP_NUM_THREADS={CORES}' in line


def test_two_ranks_and_what_the_user_has_set(tmp_path: Path) -> None:
    done = _run(tmp_path, '--nproc-per-node', '2', OMP_NUM_THREADS='3', LD_PRELOAD='libm.so.6')
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(environ['RANK'] for _, environ, _ in answers) == ['0', '1']
    for _, environ, has_allocator in answers:
        assert environ['WORLD_SIZE'] == '2'
        assert environ['OMP_NUM_THREADS'] == '3'
        assert environ['LD_PRELOAD'] == 'libm.so.6'
        assert not has_allocator


LAUNCHER = """
import os, sys
sys.argv[:] = ['pyg-sar', 'run', {words}]

def started(*args):
    print(sorted({{'torch', 'torch_geometric'}} & sys.modules.keys()), flush=True)
    os._exit(0)

os.execv = started
if len(sys.argv) > 3:
    import torch.distributed.run
    torch.distributed.run.main = started
from pyg_sar.__main__ import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ('options', 'imported'), [([], []), (['--nproc-per-node', '2'], ['torch'])]
)
def test_what_the_launcher_imports(options: list[str], imported: list[str]) -> None:
    """PyG, seconds of every start, is for the program; torch for options of torchrun."""
    code = LAUNCHER.format(words=', '.join(map(repr, [*options, __file__])))
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == str(imported), done.stderr


def test_threads_are_shared_by_the_ranks_of_a_machine() -> None:
    assert fast_environment(CORES, {})['OMP_NUM_THREADS'] == '1'
    assert fast_environment(4 * CORES, {})['OMP_NUM_THREADS'] == '1'
    assert 'OMP_NUM_THREADS' not in fast_environment(1, {'MKL_NUM_THREADS': '2'})
