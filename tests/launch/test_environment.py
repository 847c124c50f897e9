"""What is read from the variables of launchers, and what is refused."""

from __future__ import annotations

import inspect
import re
import sys

import pytest
from started import start

from pyg_sar.comm.environment import Launched, first_host, launched

SETS: dict[str, dict[str, str]] = {}
"""What launchers give to a process, by name."""


def _of(text: str) -> dict[str, str]:
    """Variables as a shell writes them; a word by itself names one of :data:`SETS`."""
    found: dict[str, str] = {}
    for word in text.split():
        name, is_set, value = word.partition('=')
        found |= {name: value} if is_set else SETS[name]
    return found


TABLE = """
GIVEN: MASTER_ADDR=host MASTER_PORT=1234
TORCH: RANK=2 WORLD_SIZE=4 GIVEN
TORCHRUN: TORCH TORCHELASTIC_RUN_ID=none LOCAL_RANK=0
OPEN_MPI: OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 PMIX_NAMESPACE=3245998081
    OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=3
MPICH: PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3
SLURM: SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=3
    SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=3
    SLURM_STEP_NODELIST=node7 SLURM_JOB_NODELIST=node[6-9]

A task of `srun -m arbitrary -w r1n10,cpu-a03,big1` (Slurm 22.05), where the list is sorted
ARBITRARY: SLURM SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_STEP_NODELIST=big1,cpu-a03,r1n10
    SLURM_DISTRIBUTION=arbitrary SLURMD_NODENAME=cpu-a03 MASTER_PORT=1234

A task of `srun -n1 -w r1n10 a : -n2 -w big1,cpu-a03 b`
HETEROGENEOUS: ARBITRARY SLURM_DISTRIBUTION=cyclic SLURM_HET_SIZE=2
    SLURM_JOB_NODELIST_PACK_GROUP_0=r1n10 SLURM_JOB_NODELIST_PACK_GROUP_1=big1,cpu-a03
PRTERUN: PMIX_RANK=1 PMIX_NAMESPACE=prterun-vm-8609@1 PRTE_LAUNCHED=1
TWO_NODES: SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_STEP_NODELIST=node[07-08]

What Slurm gives the script of sbatch, one process of an allocation for three
BATCH: SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_GTIDS=0 SLURM_NTASKS=3
    SLURM_JOB_NODELIST=node[6-9]

The daemons of mpirun, which is on node6, are tasks of a step, whose variables the ranks inherit
DAEMONS: SLURM SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=node[7-9]
APART: OMPI_COMM_WORLD_LOCAL_SIZE=1 MPI_LOCALNRANKS=1 MASTER_PORT=1234
"""
for _name, _words in re.findall(r'^([A-Z_]+): (.*(?:\n .*)*)', TABLE, re.M):
    SETS[_name] = _of(_words)

OUTSIDE = ('SLURM', 'OPEN_MPI', 'MPICH', 'BATCH')
ALONE = Launched('', 0, 1)
OF_TORCHRUN = Launched('torchrun', 2, 4, 'host', 1234)
BY_HAND = Launched('RANK and WORLD_SIZE', 2, 4, 'host', 1234)


def _rank_1(name: str, address: str = '127.0.0.1') -> Launched:
    return Launched(name, 1, 3, address, 1234)


CASES: list[tuple[str, Launched]] = [
    ('', ALONE),
    ('PATH=/bin MASTER_ADDR=host', ALONE),
    ('WORLD_SIZE=1', ALONE),
    ('RANK= WORLD_SIZE=', ALONE),
    # In an allocation, but not of a step.
    ('BATCH', ALONE),
    ('BATCH MASTER_ADDR=node6 MASTER_PORT=29500', ALONE),
    # A step of 3 tasks, or of 2 on each of 4 machines, has submitted the script.
    ('SLURM BATCH', ALONE),
    ('SLURM BATCH SLURM_STEP_NUM_TASKS=8 SLURM_STEP_TASKS_PER_NODE=2(x4)', ALONE),
    ('SLURM_NTASKS=3 SLURM_JOB_ID=77', ALONE),  # the shell of salloc
    ('SLURM_STEP_NUM_TASKS=1', ALONE),
    ('SLURM_PROCID=0 PMIX_RANK=0 PMIX_NAMESPACE=slurm.pmix.7.0', ALONE),
    # An interactive step of one.
    ('SLURM SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1', Launched('Slurm', 0, 1)),
    ('TORCHRUN', OF_TORCHRUN),
    ('TORCH', BY_HAND),
    ('RANK=0 WORLD_SIZE=1', Launched('RANK and WORLD_SIZE', 0, 1)),
    # One torchrun on every node, for example; or many trainings of one process each.
    *((f'{outside} TORCHRUN', OF_TORCHRUN) for outside in OUTSIDE),
    *((f'{name} TORCHRUN RANK=0 WORLD_SIZE=1', Launched('torchrun', 0, 1)) for name in OUTSIDE),
    # Ranks started by the tasks of a step.
    ('SLURM TORCH', BY_HAND),
    # On one machine.
    ('OPEN_MPI GIVEN', _rank_1('Open MPI', 'host')),
    ('OPEN_MPI MASTER_PORT=1234', _rank_1('Open MPI')),
    ('MPICH GIVEN', _rank_1('MPI', 'host')),
    ('MPICH MASTER_PORT=1234', _rank_1('MPI')),
    ('SLURM GIVEN', _rank_1('Slurm', 'host')),
    ('SLURM MASTER_PORT=1234', _rank_1('Slurm')),
    # On two nodes.
    ('SLURM TWO_NODES MASTER_PORT=1234', _rank_1('Slurm', 'node07')),
    # With tasks in an order of the user's own, or in two parts of a job.
    ('ARBITRARY MASTER_ADDR=r1n10', _rank_1('Slurm', 'r1n10')),
    ('HETEROGENEOUS MASTER_ADDR=r1n10', _rank_1('Slurm', 'r1n10')),
    ('ARBITRARY SLURM_STEP_TASKS_PER_NODE=3', _rank_1('Slurm')),
    ('HETEROGENEOUS SLURM_STEP_TASKS_PER_NODE=3', _rank_1('Slurm')),
    *(  # in other orders, and in one part of a job, the first machine has rank 0
        (
            f'ARBITRARY SLURM_PROCID=0 SLURMD_NODENAME=big1 SLURM_DISTRIBUTION={how}',
            Launched('Slurm', 0, 3, 'big1', 1234),
        )
        for how in ('', 'block', 'cyclic', 'plane')
    ),
    ('HETEROGENEOUS SLURM_STEP_NODELIST=big1,cpu-a03', _rank_1('Slurm', 'big1')),
    # Slurm by PMIx, and torchrun inside of prterun.
    ('SLURM PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.77.0 MASTER_PORT=1234', _rank_1('Slurm')),
    ('PRTERUN TORCHRUN', OF_TORCHRUN),
    # With WORLD_SIZE exported, as scripts for srun do, and the rank from SLURM_PROCID.
    ('SLURM GIVEN WORLD_SIZE=3', _rank_1('Slurm', 'host')),
    ('SLURM GIVEN WORLD_SIZE=3 RANK=1', _rank_1('Slurm', 'host')),
    # MPI inside Slurm, among its daemons, and on the node of mpirun.
    ('DAEMONS OPEN_MPI APART', _rank_1('Open MPI', 'node6')),
    ('DAEMONS MPICH APART', _rank_1('MPI', 'node6')),
    ('BATCH OPEN_MPI APART', _rank_1('Open MPI', 'node6')),
    ('BATCH MPICH APART', _rank_1('MPI', 'node6')),
    # Launchers that are not read: one process each, as far as they say.
    *(
        (environ, ALONE)
        for environ in (
            'HOROVOD_RANK=0 HOROVOD_SIZE=1',
            'MPT_MPI_RANK=0 MPT_MPI_SIZE=1',
            'LOCAL_RANK=0',
            'LOCAL_RANK=-1',
            'LOCAL_RANK=0 LOCAL_WORLD_SIZE=1',
            'SM_HOSTS=["algo-1"] SM_CURRENT_HOST=algo-1 SM_NUM_GPUS=8',
            'JOB_COMPLETION_INDEX=0',
            'LSB_JOBID=7 LSB_DJOB_NUMPROC=8 LSF_PM_TASKID=1',
            'PBS_JOBID=7 PBS_TASKNUM=1 PBS_NODENUM=0 PBS_VNODENUM=0 PBS_NP=8',
            'SLURM_ARRAY_TASK_ID=3 PBS_ARRAY_INDEX=3 LSB_JOBINDEX=3',
        )
    ),
    ('HOROVOD_RANK=1 HOROVOD_SIZE=2 RANK=0 WORLD_SIZE=1', Launched('RANK and WORLD_SIZE', 0, 1)),
    ('HOROVOD_RANK=2 HOROVOD_SIZE=4 JOB_COMPLETION_INDEX=1 TORCH', BY_HAND),
    ('JOB_COMPLETION_INDEX=3 PBS_TASKNUM=2 TORCHRUN', OF_TORCHRUN),
    ('HOROVOD_RANK=1 HOROVOD_SIZE=3 LOCAL_RANK=1 OPEN_MPI GIVEN', _rank_1('Open MPI', 'host')),
    ('LOCAL_RANK=1 LOCAL_WORLD_SIZE=3 SLURM GIVEN', _rank_1('Slurm', 'host')),
    # Slurm with its own PMI.
    ('SLURM TWO_NODES PMI_RANK=1 PMI_SIZE=3 MASTER_PORT=1234', _rank_1('Slurm', 'node07')),
]


@pytest.mark.parametrize(('environ', 'found'), CASES)
def test_what_is_found(environ: str, found: Launched) -> None:
    assert launched(_of(environ)) == found


def test_the_port_is_that_of_the_job() -> None:
    jobs = ('SLURM', 'OPEN_MPI', 'SLURM SLURM_STEP_ID=1', 'SLURM SLURM_JOB_ID=78')
    ports = [launched(_of(environ)).port for environ in jobs]
    assert len(set(ports)) == 4
    assert all(20000 <= port < 30000 for port in ports)
    assert launched(_of('SLURM SLURM_PROCID=0 SLURM_LOCALID=0')).port == ports[0]  # another rank
    # There is no name of the job.
    assert launched(_of('MPICH MPI_LOCALNRANKS=1 MASTER_ADDR=host')).port == 29500


_PORT = """
import os, runpy
port = runpy.run_path(os.environ['FILE'])['launched'](os.environ).port
os.write(1, f'{port} '.encode())  # in one piece, beside the other rank
"""
_MPIEXEC = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(command, env={**os.environ, 'PMI_RANK': str(rank)})
    for rank, command in enumerate([sys.argv[1:], ['sh', '-c', '"$@"; true', 'sh', *sys.argv[1:]]])
]
sys.exit(any(rank.wait() for rank in ranks))
"""
"""Starts two ranks as mpiexec of MPICH does: one of them below a shell."""


def test_two_jobs_of_mpich_on_one_machine_have_ports_of_their_own() -> None:
    variables = {'PMI_SIZE': '2', 'MPI_LOCALNRANKS': '2', 'FILE': inspect.getfile(launched)}
    command = ['python', '-c', _MPIEXEC, sys.executable, '-c', _PORT]
    jobs = [start(command, **variables) for _ in range(2)]
    ports = [set(job.communicate(timeout=100)[0].split()) for job in jobs]
    assert [len(each) for each in ports] == [1, 1]
    assert ports[0] != ports[1]
    assert all(20000 <= int(port) < 30000 for each in ports for port in each)


@pytest.mark.parametrize('rank', [0, 1])
def test_slurm_with_one_task_on_the_first_machine(rank: int) -> None:
    per_node = 'SLURM TWO_NODES SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NUM_TASKS=2'
    assert launched(_of(f'{per_node} SLURM_PROCID={rank} SLURM_GTIDS={rank}')).rank == rank


REFUSED: list[tuple[str, str]] = [
    ('WORLD_SIZE=3', 'expected RANK beside WORLD_SIZE .got WORLD_SIZE=3 alone'),
    ('RANK=0', 'expected WORLD_SIZE beside RANK .got RANK=0 alone'),
    ('BATCH WORLD_SIZE=3', 'expected RANK beside WORLD_SIZE'),
    ('RANK=3 WORLD_SIZE=3', r"'RANK' must lie in \[0, WORLD_SIZE\) .got 3 and 3"),
    ('RANK=-1 WORLD_SIZE=3', r'got -1 and 3'),
    ('RANK=x WORLD_SIZE=3', "'RANK' must be a whole number .got 'x'"),
    ('RANK=0 WORLD_SIZE=2.5', "'WORLD_SIZE' must be a whole number"),
    ('RANK=0 WORLD_SIZE=2', 'expected MASTER_ADDR beside RANK=0 and WORLD_SIZE=2'),
    ('TORCH MASTER_PORT=', 'expected MASTER_PORT beside RANK=2'),
    ('TORCH MASTER_PORT=0', "'MASTER_PORT' must lie in .*got 0"),
    ('TORCH MASTER_PORT=70000', "'MASTER_PORT' must lie in .*got 70000"),
    ('SLURM MASTER_PORT=http', "'MASTER_PORT' must be a whole number"),
    ('OMPI_COMM_WORLD_RANK=0', 'expected OMPI_COMM_WORLD_SIZE beside'),
    ('PMI_SIZE=2', 'expected PMI_RANK beside PMI_SIZE'),
    ('PMI_RANK=2 PMI_SIZE=2', "'PMI_RANK' must lie in"),
    (
        'OPEN_MPI OMPI_COMM_WORLD_LOCAL_SIZE=2',
        'expected MASTER_ADDR for rank 1 of 3 by Open MPI .*mpirun -x MASTER_ADDR=HOST',
    ),
    ('PMI_RANK=1 PMI_SIZE=3', 'mpiexec -genv MASTER_ADDR HOST'),
    # Each of them would train alone.
    ('PRTERUN', 'expected the number of ranks beside PMIX_RANK .got PMIX_RANK=1 alone; .*mpirun'),
    ('PRTERUN PMIX_RANK=0', 'got PMIX_RANK=0 alone'),
    ('PRTERUN SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1', 'got PMIX_RANK=1 alone'),
    ('PMI_ID=0 MPI_LOCALNRANKS=2', 'expected the number of ranks beside PMI_ID'),
    *(
        (f'{name}=1', f'got {name}=1 alone')
        for name in ('FLUX_TASK_RANK', 'PALS_RANKID', 'MV2_COMM_WORLD_RANK', 'ALPS_APP_PE')
    ),
    *(
        (
            f'{before} {name}={value}',
            f'MASTER_PORT beside {name} .*{re.escape(value)}.*WORLD_SIZE=1',
        )
        for before, name, value in (
            ('HOROVOD_RANK=0', 'HOROVOD_SIZE', '2'),
            ('HOROVOD_SIZE=', 'HOROVOD_RANK', '1'),
            ('MPT_MPI_RANK=0', 'MPT_MPI_SIZE', '4'),
            ('LOCAL_RANK=0', 'LOCAL_WORLD_SIZE', '2'),
            ('PATH=/bin', 'LOCAL_RANK', '1'),
            ('WORLD_SIZE=1', 'LOCAL_RANK', '1'),
            ('SM_CURRENT_HOST=algo-1', 'SM_HOSTS', '["algo-1","algo-2"]'),
            ('PATH=/bin', 'JOB_COMPLETION_INDEX', '1'),
            ('LSB_DJOB_NUMPROC=2', 'LSF_PM_TASKID', '2'),
            ('PBS_VNODENUM=0', 'PBS_TASKNUM', '00000002'),
            ('PBS_TASKNUM=1', 'PBS_VNODENUM', '3'),
            ('BATCH', 'HOROVOD_SIZE', '3'),
            ('SLURM GIVEN', 'HOROVOD_SIZE', '4'),
        )
    ),
    ('SLURM_PROCID=1 SLURM_NTASKS=3', 'expected SLURM_STEP_NUM_TASKS beside'),
    ('SLURM_STEP_NUM_TASKS=3', 'expected SLURM_PROCID beside SLURM_STEP_NUM_TASKS'),
    ('OMPI_COMM_WORLD_SIZE=3', 'expected OMPI_COMM_WORLD_RANK beside'),
    ('PMI_RANK=1', 'expected PMI_SIZE beside PMI_RANK'),
    # Nothing tells which machine has rank 0.
    ('ARBITRARY', 'expected MASTER_ADDR for rank 1 of 3 by Slurm .*export MASTER_ADDR=HOST'),
    ('ARBITRARY SLURM_PROCID=0 SLURMD_NODENAME=r1n10', 'expected MASTER_ADDR'),
    ('HETEROGENEOUS', 'expected MASTER_ADDR for rank 1 of 3 by Slurm'),
    (
        'SLURM TWO_NODES SLURM_PROCID=0 SLURMD_NODENAME=node08',
        'expected MASTER_ADDR for rank 0 of 3 by Slurm',
    ),
    (
        'BATCH OPEN_MPI APART SLURMD_NODENAME=n7 OMPI_COMM_WORLD_RANK=0',
        'expected MASTER_ADDR for rank 0 of 3 by Open MPI',
    ),
    ('SLURM TWO_NODES SLURM_STEP_NODELIST=', 'expected MASTER_ADDR.*by Slurm'),
    ('SLURM TWO_NODES SLURM_STEP_NODELIST=a[1', 'expected a list of machines'),
    # What is left over from a notebook would make every rank a training of its own.
    ('OPEN_MPI RANK=0 WORLD_SIZE=1', "'RANK' must be what Open MPI says"),
    ('SLURM WORLD_SIZE=1', 'got WORLD_SIZE=1 and SLURM_STEP_NUM_TASKS=3'),
    ('SLURM RANK=0', 'got RANK=0 and SLURM_PROCID=1; unset what is not meant'),
    ('SLURM TORCH WORLD_SIZE=3', 'got RANK=2 and SLURM_PROCID=1'),
    ('MPICH WORLD_SIZE=4', 'got WORLD_SIZE=4 and PMI_SIZE=3'),
]


@pytest.mark.parametrize(('environ', 'message'), REFUSED)
def test_refused(environ: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launched(_of(environ))


FIRST_HOSTS = {
    **{'node7': 'node7', 'node7,node3': 'node7', 'node[01-04,7]': 'node01', 'node[7],a': 'node7'},
    **{'n[3,1-2]-ib.site.org,m': 'n3-ib.site.org', 'rack[0-3]node[10-12]': 'rack0node10'},
    'a-b_c.d,e[1-2]': 'a-b_c.d',
}


@pytest.mark.parametrize('hosts', FIRST_HOSTS)
def test_first_host(hosts: str) -> None:
    assert first_host(hosts) == FIRST_HOSTS[hosts]


@pytest.mark.parametrize('hosts', [',node1', 'node[1', '[', 'node]', 'a b'])
def test_no_list_of_hosts(hosts: str) -> None:
    with pytest.raises(ValueError, match='expected a list of machines'):
        first_host(hosts)
