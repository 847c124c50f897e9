"""What is read from the variables of launchers, and what is refused."""

from __future__ import annotations

import pytest

from pyg_sar.launching.environment import Launched, first_host, launched

TORCH = {'RANK': '2', 'WORLD_SIZE': '4', 'MASTER_ADDR': 'host', 'MASTER_PORT': '1234'}
TORCHRUN = {**TORCH, 'TORCHELASTIC_RUN_ID': 'none', 'LOCAL_RANK': '0'}
OPEN_MPI = {
    'OMPI_COMM_WORLD_RANK': '1',
    'OMPI_COMM_WORLD_SIZE': '3',
    'OMPI_COMM_WORLD_LOCAL_RANK': '1',
    'OMPI_COMM_WORLD_LOCAL_SIZE': '3',
    'PMIX_NAMESPACE': '3245998081',
}
MPICH = {'PMI_RANK': '1', 'PMI_SIZE': '3', 'MPI_LOCALRANKID': '1', 'MPI_LOCALNRANKS': '3'}
SLURM = {
    'SLURM_JOB_ID': '77',
    'SLURM_STEP_ID': '0',
    'SLURM_PROCID': '1',
    'SLURM_LOCALID': '1',
    'SLURM_NTASKS': '3',
    'SLURM_STEP_NUM_TASKS': '3',
    'SLURM_STEP_TASKS_PER_NODE': '3',
    'SLURM_STEP_NODELIST': 'node7',
    'SLURM_JOB_NODELIST': 'node[6-9]',
}
TWO_NODES = {'SLURM_STEP_TASKS_PER_NODE': '2,1', 'SLURM_STEP_NODELIST': 'node[07-08]'}
BATCH = {
    'SLURM_JOB_ID': '77',
    'SLURM_PROCID': '0',
    'SLURM_LOCALID': '0',
    'SLURM_GTIDS': '0',
    'SLURM_NTASKS': '3',
    'SLURM_JOB_NODELIST': 'node[6-9]',
}
"""What Slurm gives the script of sbatch, one process of an allocation for three."""


def test_a_process_by_itself() -> None:
    assert launched({}) == Launched('', 0, 1)
    assert launched({'PATH': '/bin', 'MASTER_ADDR': 'host'}) == Launched('', 0, 1)
    assert launched({'WORLD_SIZE': '1'}) == Launched('', 0, 1)
    assert launched({'RANK': '', 'WORLD_SIZE': ''}) == Launched('', 0, 1)


@pytest.mark.parametrize(
    'environ',
    [
        BATCH,
        {**BATCH, 'MASTER_ADDR': 'node6', 'MASTER_PORT': '29500'},
        # A step of 3 tasks, or of 2 on each of 4 machines, has submitted the script.
        {**SLURM, **BATCH},
        {**SLURM, **BATCH, 'SLURM_STEP_NUM_TASKS': '8', 'SLURM_STEP_TASKS_PER_NODE': '2(x4)'},
        {'SLURM_NTASKS': '3', 'SLURM_JOB_ID': '77'},  # the shell of salloc
        {'SLURM_STEP_NUM_TASKS': '3'},
    ],
)
def test_in_an_allocation_but_not_of_a_step(environ: dict[str, str]) -> None:
    assert launched(environ) == Launched('', 0, 1)


def test_an_interactive_step_of_one() -> None:
    found = launched({**SLURM, 'SLURM_PROCID': '0', 'SLURM_STEP_NUM_TASKS': '1'})
    assert found == Launched('Slurm', 0, 1)


def test_torchrun() -> None:
    assert launched(TORCHRUN) == Launched('torchrun', 2, 4, 'host', 1234)


def test_by_hand() -> None:
    assert launched(TORCH) == Launched('RANK and WORLD_SIZE', 2, 4, 'host', 1234)
    assert launched({'RANK': '0', 'WORLD_SIZE': '1'}).world_size == 1


@pytest.mark.parametrize('outside', [SLURM, OPEN_MPI, MPICH, BATCH])
def test_torchrun_inside_another_launcher(outside: dict[str, str]) -> None:
    """One torchrun on every node, for example; or many trainings of one process each."""
    assert launched({**outside, **TORCHRUN}).rank == 2
    alone = {**TORCHRUN, 'RANK': '0', 'WORLD_SIZE': '1'}
    assert launched({**outside, **alone}) == Launched('torchrun', 0, 1)


def test_ranks_started_by_the_tasks_of_a_step() -> None:
    assert launched({**SLURM, **TORCH}) == Launched('RANK and WORLD_SIZE', 2, 4, 'host', 1234)


@pytest.mark.parametrize(
    ('environ', 'name'), [(OPEN_MPI, 'Open MPI'), (MPICH, 'MPI'), (SLURM, 'Slurm')]
)
def test_on_one_machine(environ: dict[str, str], name: str) -> None:
    found = launched(environ)
    assert (found.launcher, found.rank, found.world_size) == (name, 1, 3)
    assert found.address == '127.0.0.1'
    given = launched({**environ, 'MASTER_ADDR': 'host', 'MASTER_PORT': '1234'})
    assert given == Launched(name, 1, 3, 'host', 1234)


def test_the_port_is_that_of_the_job() -> None:
    ports = [launched(environ).port for environ in (SLURM, OPEN_MPI)]
    ports += [launched({**SLURM, 'SLURM_STEP_ID': '1'}).port]
    ports += [launched({**SLURM, 'SLURM_JOB_ID': '78'}).port]
    assert len(set(ports)) == 4
    assert all(20000 <= port < 30000 for port in ports)
    other_rank = {**SLURM, 'SLURM_PROCID': '0', 'SLURM_LOCALID': '0'}
    assert launched(other_rank).port == ports[0]
    assert launched(MPICH).port == 29500  # there is no name of the job


def test_slurm_on_two_nodes() -> None:
    found = launched({**SLURM, **TWO_NODES})
    assert (found.address, found.port) == ('node07', launched(SLURM).port)


def test_slurm_with_one_task_on_the_first_machine() -> None:
    per_node = {'SLURM_STEP_TASKS_PER_NODE': '1(x2)', 'SLURM_STEP_NUM_TASKS': '2'}
    for rank in '01':
        of_rank = {**SLURM, **TWO_NODES, **per_node, 'SLURM_PROCID': rank, 'SLURM_GTIDS': rank}
        assert launched(of_rank).rank == int(rank)


def test_slurm_with_world_size_exported() -> None:
    """As scripts for srun do, with the rank from SLURM_PROCID."""
    exported = {'WORLD_SIZE': '3', 'MASTER_ADDR': 'node6', 'MASTER_PORT': '1234'}
    assert launched({**SLURM, **exported}) == Launched('Slurm', 1, 3, 'node6', 1234)
    assert launched({**SLURM, **exported, 'RANK': '1'}).rank == 1


@pytest.mark.parametrize('mpi', [OPEN_MPI, MPICH])
def test_mpi_inside_slurm(mpi: dict[str, str]) -> None:
    """The daemons of mpirun are tasks of a step, whose variables the ranks inherit."""
    apart = {**mpi, 'OMPI_COMM_WORLD_LOCAL_SIZE': '1', 'MPI_LOCALNRANKS': '1'}
    daemons = {**SLURM, 'SLURM_PROCID': '0', 'SLURM_STEP_NUM_TASKS': '2'}
    daemons['SLURM_STEP_NODELIST'] = 'node[7-9]'  # not that of mpirun itself
    found = launched({**daemons, **apart})
    assert (found.rank, found.world_size, found.address) == (1, 3, 'node6')
    found = launched({**BATCH, **apart})  # on the node of mpirun
    assert (found.rank, found.world_size, found.address) == (1, 3, 'node6')


def test_slurm_with_its_own_pmi() -> None:
    found = launched({**SLURM, **TWO_NODES, 'PMI_RANK': '1', 'PMI_SIZE': '3'})
    assert (found.launcher, found.address) == ('Slurm', 'node07')


@pytest.mark.parametrize(
    ('environ', 'message'),
    [
        ({'WORLD_SIZE': '3'}, 'expected RANK beside WORLD_SIZE .got WORLD_SIZE=3 alone'),
        ({'RANK': '0'}, 'expected WORLD_SIZE beside RANK .got RANK=0 alone'),
        ({**BATCH, 'WORLD_SIZE': '3'}, 'expected RANK beside WORLD_SIZE'),
        ({'RANK': '3', 'WORLD_SIZE': '3'}, r"'RANK' must lie in \[0, WORLD_SIZE\) .got 3 and 3"),
        ({'RANK': '-1', 'WORLD_SIZE': '3'}, r'got -1 and 3'),
        ({'RANK': 'x', 'WORLD_SIZE': '3'}, "'RANK' must be a whole number .got 'x'"),
        ({'RANK': '0', 'WORLD_SIZE': '2.5'}, "'WORLD_SIZE' must be a whole number"),
        ({'RANK': '0', 'WORLD_SIZE': '2'}, 'expected MASTER_ADDR beside RANK=0 and WORLD_SIZE=2'),
        ({**TORCH, 'MASTER_PORT': ''}, 'expected MASTER_PORT beside RANK=2'),
        ({**TORCH, 'MASTER_PORT': '0'}, "'MASTER_PORT' must lie in .*got 0"),
        ({**TORCH, 'MASTER_PORT': '70000'}, "'MASTER_PORT' must lie in .*got 70000"),
        ({**SLURM, 'MASTER_PORT': 'http'}, "'MASTER_PORT' must be a whole number"),
        ({'OMPI_COMM_WORLD_RANK': '0'}, 'expected OMPI_COMM_WORLD_SIZE beside'),
        ({'PMI_SIZE': '2'}, 'expected PMI_RANK beside PMI_SIZE'),
        ({'PMI_RANK': '2', 'PMI_SIZE': '2'}, "'PMI_RANK' must lie in"),
        (
            {**OPEN_MPI, 'OMPI_COMM_WORLD_LOCAL_SIZE': '2'},
            'expected MASTER_ADDR for rank 1 of 3 by Open MPI .*mpirun -x MASTER_ADDR=HOST',
        ),
        ({'PMI_RANK': '1', 'PMI_SIZE': '3'}, 'mpiexec -genv MASTER_ADDR HOST'),
        ({**SLURM, **TWO_NODES, 'SLURM_STEP_NODELIST': ''}, 'expected MASTER_ADDR.*by Slurm'),
        ({**SLURM, **TWO_NODES, 'SLURM_STEP_NODELIST': 'a[1'}, 'expected a list of machines'),
        # What is left over from a notebook would make every rank a training of its own.
        ({**OPEN_MPI, 'RANK': '0', 'WORLD_SIZE': '1'}, "'RANK' must be what Open MPI says"),
        ({**SLURM, 'WORLD_SIZE': '1'}, 'got WORLD_SIZE=1 and SLURM_STEP_NUM_TASKS=3'),
        ({**SLURM, 'RANK': '0'}, 'got RANK=0 and SLURM_PROCID=1; unset what is not meant'),
        ({**SLURM, **TORCH, 'WORLD_SIZE': '3'}, 'got RANK=2 and SLURM_PROCID=1'),
        ({**MPICH, 'WORLD_SIZE': '4'}, 'got WORLD_SIZE=4 and PMI_SIZE=3'),
    ],
)
def test_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launched(environ)


@pytest.mark.parametrize(
    ('hosts', 'first'),
    [
        ('node7', 'node7'),
        ('node7,node3', 'node7'),
        ('node[01-04,7]', 'node01'),
        ('node[7],a', 'node7'),
        ('n[3,1-2]-ib.site.org,m', 'n3-ib.site.org'),
        ('rack[0-3]node[10-12]', 'rack0node10'),
        ('a-b_c.d,e[1-2]', 'a-b_c.d'),
    ],
)
def test_first_host(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize('hosts', [',node1', 'node[1', '[', 'node]', 'a b'])
def test_no_list_of_hosts(hosts: str) -> None:
    with pytest.raises(ValueError, match='expected a list of machines'):
        first_host(hosts)
