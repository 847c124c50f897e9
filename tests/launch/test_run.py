"""``pyg-sar run``: the program gets the environment that makes it fast."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from started import output, run

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


def _run(path: Path, *options: str, **environ: str) -> tuple[list[Any], str]:
    """What every rank has printed, and what was said beside. Without options the code is 7."""
    (path / 'program.py').write_text(PROGRAM)
    code = 0 if options else 7
    command = ['python', '-m', 'pyg_sar', 'run', *options, path / 'program.py', code, '--hidden', 8]
    done = run(command, **{**dict.fromkeys(OURS), **environ})
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_one_process(tmp_path: Path) -> None:
    """Without options it is no torchrun; arguments, output and exit code are the program's."""
    ((arguments, environ, has_allocator),), said = _run(tmp_path)
    assert arguments == ['7', '--hidden', '8']
    assert environ == {
        'RANK': None,
        'WORLD_SIZE': None,
        'OMP_NUM_THREADS': str(CORES),
        'LD_PRELOAD': allocator_library(),
        'GOMP_SPINCOUNT': '10000',
    }
    assert has_allocator == (allocator_library() is not None)
    (line,) = re.findall('^python -m pyg_sar run:.*', said, re.M)
    assert f'OMP_NUM_THREADS={CORES}' in line


def test_two_ranks_and_what_the_user_has_set(tmp_path: Path) -> None:
    given = {'OMP_NUM_THREADS': '3', 'LD_PRELOAD': 'libm.so.6'}
    answers, _ = _run(tmp_path, '--nproc-per-node', '2', **given)
    assert sorted(environ['RANK'] for _, environ, _ in answers) == ['0', '1']
    for _, environ, has_allocator in answers:
        assert environ.items() >= {'WORLD_SIZE': '2', **given}.items()
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
    assert output(['python', '-c', code]).strip() == str(imported)


def test_threads_are_shared_by_the_ranks_of_a_machine() -> None:
    assert fast_environment(CORES, {})['OMP_NUM_THREADS'] == '1'
    assert fast_environment(4 * CORES, {})['OMP_NUM_THREADS'] == '1'
    assert 'OMP_NUM_THREADS' not in fast_environment(1, {'MKL_NUM_THREADS': '2'})
