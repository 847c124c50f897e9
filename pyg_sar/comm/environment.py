"""Reads a process's rank, the number of ranks and the address of rank 0 from its environment.

Launchers start each other: torchrun may run inside a step of Slurm, and ``mpirun`` starts its own
daemons by ``srun``, whose variables the ranks inherit. So the innermost launcher is read first.
Which ranks share a machine, they find out from each other.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PORT = 29500


@dataclass(frozen=True)
class Launched:
    """A process of a training."""

    launcher: str = ''  # who started it
    rank: int = 0  # which process it is
    world_size: int = 1  # how many there are
    # A name or an address of the machine of rank 0; empty if there is no other rank.
    address: str = ''
    port: int = DEFAULT_PORT  # where the ranks meet on that machine


@dataclass(frozen=True)
class _Launcher:
    name: str  # for messages
    rank: str  # the variable with the rank
    size: str  # that with the number of ranks
    local_size: str  # equals the number of ranks if all run on one machine
    jobs: tuple[str, ...]  # the same on all ranks of a job, and different in other jobs
    hosts: str  # the list of machines
    pass_on: str  # how a user gives all ranks a variable


_SLURM = _Launcher(
    'Slurm',
    'SLURM_PROCID',
    'SLURM_STEP_NUM_TASKS',
    'SLURM_STEP_TASKS_PER_NODE',
    ('SLURM_JOB_ID', 'SLURM_STEP_ID'),
    'SLURM_STEP_NODELIST',
    'export MASTER_ADDR=HOST',
)
_OPEN_MPI = _Launcher(
    'Open MPI',
    'OMPI_COMM_WORLD_RANK',
    'OMPI_COMM_WORLD_SIZE',
    'OMPI_COMM_WORLD_LOCAL_SIZE',
    ('PMIX_NAMESPACE',),
    'SLURM_JOB_NODELIST',  # not that of the step, which is one of the daemons
    'mpirun -x MASTER_ADDR=HOST',
)
_MPICH = _Launcher(  # and Intel MPI
    'MPI',
    'PMI_RANK',
    'PMI_SIZE',
    'MPI_LOCALNRANKS',
    ('SLURM_JOB_ID',),
    'SLURM_JOB_NODELIST',
    'mpiexec -genv MASTER_ADDR HOST',
)
_RANKS_WITHOUT_SIZE = (  # prterun, mpiexec -pmi-port, MVAPICH, Flux, PALS, ALPS, jsrun
    *('PMIX_RANK', 'PMI_ID', 'MV2_COMM_WORLD_RANK', 'FLUX_TASK_RANK', 'PALS_RANKID'),
    *('ALPS_APP_PE', 'JSM_NAMESPACE_RANK'),
)

_OTHERS = (  # launchers that are not read: rank and size, and the rank of the first process
    ('HOROVOD_RANK', 'HOROVOD_SIZE', 0),
    ('MPT_MPI_RANK', 'MPT_MPI_SIZE', 0),
    ('LOCAL_RANK', 'LOCAL_WORLD_SIZE', 0),
    ('', 'SM_HOSTS', 0),
    ('JOB_COMPLETION_INDEX', '', 0),
    ('LSF_PM_TASKID', '', 1),
    # A script of PBS is task 1 at place 0.
    ('PBS_TASKNUM', '', 1),
    ('PBS_VNODENUM', '', 0),
)


def launched(environ: Mapping[str, str]) -> Launched:
    """The launcher of this process, and its rank; a process alone where no launcher is.

    Raises ValueError if variables of the environment are missing, wrong or contradict each other.
    """
    launcher, rank, size = _by_launcher(environ)
    by_torch = _by_torch(environ, launcher, rank, size)
    if by_torch is not None:
        return by_torch
    if launcher in (None, _SLURM):
        _check_sizes(environ)
        _check_others(environ, size)
    if launcher is None or size == 1:
        return Launched('' if launcher is None else launcher.name)
    address = environ.get('MASTER_ADDR') or _address(environ, launcher, rank, size)
    return Launched(launcher.name, rank, size, address, _port(environ, launcher, size))


def _by_launcher(environ: Mapping[str, str]) -> tuple[_Launcher | None, int, int]:
    """The innermost launcher, except torchrun; its rank and its number of ranks."""
    slurm = _rank_and_size(environ, _SLURM)
    for launcher in (_OPEN_MPI, _MPICH):
        numbers = _rank_and_size(environ, launcher)
        if numbers is not None and not (launcher is _MPICH and numbers == slurm):  # srun --mpi=pmi2
            return launcher, *numbers
    return (None, 0, 1) if slurm is None else (_SLURM, *slurm)


def _rank_and_size(environ: Mapping[str, str], launcher: _Launcher) -> tuple[int, int] | None:
    num_set = sum(bool(environ.get(name)) for name in (launcher.rank, launcher.size))
    # Slurm gives a batch script a rank, though it is one process.
    if not num_set or (launcher is _SLURM and (num_set == 1 or _is_batch(environ))):
        return None
    return _checked(environ, launcher.rank, launcher.size)


def _is_batch(environ: Mapping[str, str]) -> bool:
    """Whether Slurm started a batch script, which inherits variables of the step it came from.

    Slurm starts a batch script as one task. If every machine of the step has several tasks, the
    variables come from an outer step.
    """
    counts = re.sub(r'\(x\d+\)', '', environ.get('SLURM_STEP_TASKS_PER_NODE', '1')).split(',')
    return environ.get('SLURM_GTIDS') == '0' and '1' not in counts


def _check_sizes(environ: Mapping[str, str]) -> None:
    """Raises a ValueError for a rank without a size: all of them would train alone."""
    is_of_slurm = environ.get('PMIX_NAMESPACE', '').startswith('slurm')
    for name in _RANKS_WITHOUT_SIZE[is_of_slurm:]:
        if environ.get(name):
            _checked(environ, name, 'the number of ranks')
    rank, size = environ.get(_SLURM.rank), environ.get(_SLURM.size)
    # A batch script is rank 0, without a size.
    if bool(rank) != bool(size) and (rank or '0', size or '1') != ('0', '1'):
        _checked(environ, _SLURM.rank, _SLURM.size)


def _check_others(environ: Mapping[str, str], num_known: int) -> None:
    """Raises a ValueError where another launcher tells of more processes than are known.

    A size of one, or the first rank without a size, may be a process by itself.
    """
    for rank, size, first in _OTHERS:
        for name, least in ((size, 0), (rank, 1 - first)):
            value = environ.get(name, '')
            number = value.count(',') + 1 if name == 'SM_HOSTS' else _digits(value)
            if number + least > num_known:
                raise ValueError(
                    f'expected RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT beside {name} (got '
                    f'{name}={value}, by a launcher that is not read): set them from its '
                    'variables, or RANK=0 and WORLD_SIZE=1 where this process trains alone'
                )


def _digits(value: str) -> int:
    return int(value) if value.isdecimal() else 0


def _checked(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if not environ.get(name):
            raise ValueError(
                f'expected {name} beside {other} (got {other}={environ[other]} alone; start the '
                f'program by torchrun, srun or mpirun, or unset {other})'
            )
    rank, size = _number(environ, rank_name), _number(environ, size_name)
    if not 0 <= rank < size:
        raise ValueError(f"'{rank_name}' must lie in [0, {size_name}) (got {rank} and {size})")
    return rank, size


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"'{name}' must be a whole number (got {environ[name]!r})") from None


def _by_torch(
    environ: Mapping[str, str], launcher: _Launcher | None, rank: int, size: int
) -> Launched | None:
    """What torch's own variables say; None where the launcher says it."""
    names = [name for name in ('RANK', 'WORLD_SIZE') if environ.get(name)]
    if not names or (launcher is None and names == ['WORLD_SIZE'] and environ[names[0]] == '1'):
        return None
    is_torchrun = bool(environ.get('TORCHELASTIC_RUN_ID'))
    if launcher is not None and not is_torchrun:
        says = {'RANK': (rank, launcher.rank), 'WORLD_SIZE': (size, launcher.size)}
        numbers = {name: _number(environ, name) for name in names}
        # If the tasks of a step start ranks of their own, there are more ranks than tasks.
        if len(names) == 1 or numbers['WORLD_SIZE'] <= size:
            for name, number in numbers.items():
                if number != says[name][0]:
                    raise ValueError(
                        f"'{name}' must be what {launcher.name} says (got {name}={number} and "
                        f'{says[name][1]}={says[name][0]}; unset what is not meant)'
                    )
            return None
    rank, size = _checked(environ, 'RANK', 'WORLD_SIZE')
    name = 'torchrun' if is_torchrun else 'RANK and WORLD_SIZE'
    if size == 1:
        return Launched(name)
    for needed in ('MASTER_ADDR', 'MASTER_PORT'):
        if not environ.get(needed):
            raise ValueError(
                f'expected {needed} beside RANK={rank} and WORLD_SIZE={size} (got none; give all '
                'ranks the machine of rank 0 and a free port there)'
            )
    return Launched(name, rank, size, environ['MASTER_ADDR'], _master_port(environ))


def _address(environ: Mapping[str, str], launcher: _Launcher, rank: int, size: int) -> str:
    if environ.get(launcher.local_size) == str(size):
        return '127.0.0.1'
    hosts = environ.get(launcher.hosts, '')
    # A list is sorted by name: as ranks are, unless the user or a heterogeneous job orders them.
    parts = [value for name, value in environ.items() if name.startswith('SLURM_JOB_NODELIST_')]
    is_ordered = environ.get('SLURM_DISTRIBUTION') != 'arbitrary'
    if hosts and is_ordered and (not environ.get('SLURM_HET_SIZE') or hosts in parts):
        machine = first_host(hosts)
        if rank or environ.get('SLURMD_NODENAME', machine) == machine:
            return machine
    raise ValueError(
        f'expected MASTER_ADDR for rank {rank} of {size} by {launcher.name} (got none; give all '
        f"ranks the machine of rank 0, as in '{launcher.pass_on}')"
    )


def first_host(hosts: str) -> str:
    """The first machine of a list of Slurm: ``node[07-12,20],login`` has ``node07``."""
    host = re.sub(r'\[(\w+)[-,\w]*\]', r'\1', hosts).split(',')[0]
    if not re.fullmatch(r'[\w.-]+', host):
        raise ValueError(f'expected a list of machines such as node[01-04,7] (got {hosts!r})')
    return host


def _port(environ: Mapping[str, str], launcher: _Launcher, size: int) -> int:
    """MASTER_PORT, or a port of the job: jobs on one machine nearly always have different ports.

    It lies below the ports that Linux gives to connections (32768 to 60999).
    """
    if environ.get('MASTER_PORT'):
        return _master_port(environ)
    job = '.'.join(environ[name] for name in launcher.jobs if environ.get(name))
    if launcher is _MPICH and environ.get(launcher.local_size) == str(size):
        job = _starter(launcher.rank)
    return 20000 + zlib.crc32(job.encode()) % 10000 if job else DEFAULT_PORT


def _starter(rank_name: str) -> str:
    """The next process above this one without a rank: it has started all ranks of the machine.

    Between them may be shells.
    """
    pid = str(os.getppid())
    with suppress(OSError):  # it is another user's
        while f'\0{rank_name}=' in '\0' + Path('/proc', pid, 'environ').read_text(errors='replace'):
            pid = Path('/proc', pid, 'stat').read_text().rpartition(')')[2].split()[1]
    return pid


def _master_port(environ: Mapping[str, str]) -> int:
    port = _number(environ, 'MASTER_PORT')
    if not 0 < port < 2**16:
        raise ValueError(f"'MASTER_PORT' must lie in [1, 65535] (got {port})")
    return port
