"""The same example under every launcher, without a line of code between them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import ALONE, why_no_networks
from one_machine_slurm import slurm, why_no_slurm
from started import ROOT, TORCHRUN, output, run
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm.environment import launched

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / 'examples' / 'train_full_batch.py'
MPIRUN = ['mpirun', '--oversubscribe', *(['--allow-run-as-root'] if os.geteuid() == 0 else [])]

needs_mpi = pytest.mark.skipif(
    shutil.which('mpirun') is None, reason='mpirun not installed (Debian: openmpi-bin)'
)


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 parts: for 1, 3 and 4 ranks."""
    generator = torch.Generator().manual_seed(5)
    data = Data(
        x=torch.randn(120, 6, generator=generator),
        edge_index=torch.randint(0, 120, (2, 600), generator=generator),
        y=torch.arange(120) % 3,
        train_mask=torch.rand(120, generator=generator) < 0.5,
    )
    root = tmp_path_factory.mktemp('launchers') / 'parts'
    pyg_sar.partition_graph(data, 12, root, method=torch.arange(120) % 12)
    return root


@pytest.fixture(scope='module')
def program(parts: Path) -> list[object]:
    """The example; what it prints has the numbers of :func:`expected`."""
    return [EXAMPLE, parts, '--epochs', 3, '--hidden', 8]


@pytest.fixture(scope='module')
def expected(program: list[object]) -> torch.Tensor:
    """Epoch, loss and accuracy of three epochs: those of plain ``python``."""
    return _numbers(output(['python', *program]))


def _numbers(text: str) -> torch.Tensor:
    lines = text.splitlines()
    found = [re.findall(r'\d+(?:\.\d+)?', line) for line in lines if line.startswith('epoch')]
    assert [numbers[0] for numbers in found] == ['1', '2', '3'], text  # once: by rank 0 alone
    return torch.tensor([[float(n) for n in numbers] for numbers in found])


def _assert_ran(done: Any, expected: torch.Tensor, launcher: str, num_ranks: int = 3) -> None:
    """It ended well with the same numbers, and each rank has said how it was started."""
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(_numbers(done.stdout), expected, rtol=1e-4, atol=1e-4)
    told = sorted(re.findall(r'\[rank (\d)/\d\] by (.*?) ranks on', done.stderr))
    here = range(1, num_ranks + 1)
    assert [words for _, words in told] == [f'{launcher}, {i} of {num_ranks}' for i in here]


@needs_mpi
def test_mpirun(program: list[object], expected: torch.Tensor) -> None:
    done = run([*MPIRUN, '-n', 3, 'python', *program], PYG_SAR_LOG='info')
    _assert_ran(done, expected, 'Open MPI')


def test_torchrun_on_two_machines(program: list[object], expected: torch.Tensor) -> None:
    if why := why_no_networks():
        pytest.skip(why)
    command = [*ALONE, 'python', Path(__file__).with_name('two_machines.py')]
    command += [*TORCHRUN, '--nnodes', 2, '--node-rank', 'MACHINE', '--nproc-per-node', 2]
    command += ['--master-addr', '10.7.0.1', '--master-port', 29500, *program]
    done = run(command, GLOO_SOCKET_IFNAME='eth0', PYG_SAR_LOG='info')
    _assert_ran(done, expected, 'torchrun', 4)
    assert done.stderr.count('interface: eth0') == 4


_SPAWN = """
import runpy, sys
import torch.distributed as dist
import torch.multiprocessing as mp

def rank_of(rank, store):
    dist.init_process_group('gloo', init_method=f'file://{store}', rank=rank, world_size=3)
    runpy.run_path(sys.argv[0], run_name='__main__')

if __name__ == '__main__':
    store, *sys.argv = sys.argv[1:]
    mp.spawn(rank_of, (store,), 3)
"""


def test_spawn_and_a_group_of_the_users_own(program, expected, tmp_path):
    (tmp_path / 'spawn.py').write_text(_SPAWN)
    command = ['python', tmp_path / 'spawn.py', tmp_path / 'store', *program]
    _assert_ran(run(command, GLOO_SOCKET_IFNAME='lo'), expected, '', 0)


@pytest.fixture(scope='module')
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if why_no_slurm():
        pytest.skip(why_no_slurm())
    with slurm(tmp_path_factory.mktemp('slurm')) as variables:
        yield variables


@pytest.mark.parametrize('more', [[], ['--mpi=pmi2']])
def test_srun(program, expected, cluster, more):
    done = run(['srun', '-n', 3, *more, 'python', *program], PYG_SAR_LOG='info', **cluster)
    _assert_ran(done, expected, 'Slurm')


_NOTE = 'env > "$0.$$"'


def _environments(command: list[Any], folder: Path, **variables: str) -> list[dict[str, str]]:
    """The variables that a launcher gives to each of its processes."""
    file = folder / 'variables'
    output([*command, 'sh', '-c', _NOTE, file], **variables)
    found = [p.read_text().splitlines() for p in folder.glob('variables.*')]
    return [dict(line.split('=', 1) for line in lines if '=' in line) for lines in found]


@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or 'there is one')
def test_slurm_on_three_machines(tmp_path: Path) -> None:
    names = ['r1n10', 'cpu-a03', 'big1']  # not in the order of letters
    (tmp_path / 'hosts').write_text('\n'.join(names))
    with slurm(tmp_path, names) as variables:
        for number, how in enumerate(('block', 'cyclic', 'plane=1', 'arbitrary')):
            (tmp_path / str(number)).mkdir()
            machines = tmp_path / 'hosts' if how == 'arbitrary' else ','.join(names)
            command = ['srun', '-N', 3, '-n', 3, '-m', how, '-w', machines]
            found = _environments(command, tmp_path / str(number), **variables)
            assert sorted(environ['SLURM_PROCID'] for environ in found) == ['0', '1', '2']
            (rank_0,) = [each for each in found if each['SLURM_PROCID'] == '0']
            assert rank_0['SLURMD_NODENAME'] == ('r1n10' if how == 'arbitrary' else 'big1')
            for environ in found:
                if how == 'arbitrary':
                    with pytest.raises(ValueError, match='expected MASTER_ADDR for rank'):
                        launched(environ)
                    environ['MASTER_ADDR'] = rank_0['SLURMD_NODENAME']
                assert launched(environ).address == rank_0['SLURMD_NODENAME']


_MPIEXEC = shutil.which('mpiexec.hydra')


@pytest.mark.skipif(_MPIEXEC is None, reason='mpiexec.hydra not installed (Debian: mpich)')
def test_two_jobs_of_mpich_at_once(program: list[object], expected: torch.Tensor) -> None:
    job: list[object] = [_MPIEXEC, '-n', 3, sys.executable, *program]
    with ThreadPoolExecutor() as pool:
        jobs = list(pool.map(lambda _: run(job, PYG_SAR_LOG='info'), range(2)))
    for done in jobs:
        _assert_ran(done, expected, 'MPI')


def test_a_batch_script_is_one_process(tmp_path: Path, cluster: dict[str, str]) -> None:
    script = tmp_path / 'job.sh'
    script.write_text(f'#!/bin/sh\nenv > {tmp_path}/batch\nsrun env > {tmp_path}/step\n')
    command = ['sbatch', '--wait', '-n', 3, '-o', tmp_path / 'out', script]
    step = {'ID': '0', 'NUM_TASKS': '3', 'TASKS_PER_NODE': '3', 'NODELIST': 'localhost'}
    for inherited in ({}, {f'SLURM_STEP_{name}': value for name, value in step.items()}):
        output(command, **cluster, **inherited)
        lines = (tmp_path / 'batch').read_text().splitlines()
        environ = dict(line.split('=', 1) for line in lines if '=' in line)
        assert environ['SLURM_NTASKS'] == '3'
        assert launched(environ).world_size == 1
        assert (tmp_path / 'step').read_text().count('SLURM_STEP_NUM_TASKS=3') == 3
