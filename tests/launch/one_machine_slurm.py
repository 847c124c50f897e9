"""A cluster of Slurm that is this machine, for the time of a test."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ports import free_port
from started import run, start, wait_until

_PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'srun', 'sbatch', 'sinfo')

_CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SchedulerType=sched/builtin
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_NODE = """
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=100
"""


def why_no_slurm() -> str:
    """Why there is none here; empty if there is."""
    missing = [name for name in _PROGRAMS if _program(name) is None]
    if missing:
        return f'{", ".join(missing)} not installed (Debian: slurm-wlm, munge)'
    return '' if os.geteuid() == 0 else 'Slurm is set up by root'


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path='/usr/sbin:/sbin')


@contextlib.contextmanager
def slurm(folder: Path, names: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Gives the variables that srun and sbatch need; ends the cluster afterwards.

    With `names` this machine is several, which have these names.
    """
    host = socket.gethostname().split('.')[0]
    names = names or [host]
    for name in ('state', *(f'spool-{name}' for name in names)):
        (folder / name).mkdir()
    key, conf = folder / 'munge.key', folder / 'slurm.conf'
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    nodes = [_NODE.format(name=name, host=host, port=free_port()) for name in names]
    text = _CONF.format(host=host, ports=[free_port()], folder=folder)
    conf.write_text(text.replace('PartitionName', ''.join(nodes) + 'PartitionName'))
    (folder / 'cgroup.conf').write_text('CgroupAutomount=no\n')
    variables = {'SLURM_CONF': str(conf)}
    files = [f'--{what}-file={folder}/munge.{what}' for what in ('key', 'pid', 'log', 'seed')]
    commands = [
        ['munged', '--foreground', '--force', f'--socket={folder}/munge.socket', *files],
        ['slurmctld', '-D', '-f', str(conf)],
        *(['slurmd', '-D', '-N', name, '-f', str(conf)] for name in names),
    ]
    daemons: list[subprocess.Popen[str]] = []
    try:
        for name, *words in commands:
            with (folder / f'{name}.out').open('a') as said:
                daemons.append(start([_program(name), *words], said=said, **variables))
            if name == 'munged':
                _wait(lambda: (folder / 'munge.socket').exists(), folder)
        _wait(lambda: _is_idle(variables), folder)
        yield variables
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.communicate()


def _is_idle(variables: dict[str, str]) -> bool:
    done = run(['sinfo', '--noheader', '--format=%t'], **variables)
    return done.stdout.strip() == 'idle'


def _wait(holds: Callable[[], bool], folder: Path) -> None:
    try:
        wait_until(holds, 'Slurm did not start', 40)
    except AssertionError as error:
        logs = '\n'.join(f'{p.name}:\n{p.read_text()[-2000:]}' for p in folder.glob('*.out'))
        raise TimeoutError(logs) from error
