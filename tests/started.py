"""Starts programs, without what an outer launcher has put into the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = ('python', '-m', 'torch.distributed.run')
_OF_LAUNCHERS = (
    *('RANK', 'WORLD_SIZE', 'MASTER_', 'LOCAL_', 'TORCHELASTIC_'),
    *('OMPI_', 'PMI', 'SLURM'),
)


def environment(**variables: str) -> dict[str, str]:
    """This process's, without a launcher's variables, with one thread, and with others."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OF_LAUNCHERS)}
    return {**kept, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path, **variables}


def run(
    command: Sequence[object], *, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder; ``python`` is this one."""
    words = [sys.executable if word == 'python' else str(word) for word in command]
    return subprocess.run(
        words, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=600
    )


def output(command: Sequence[object], *, folder: Path | None = None, **variables: str) -> str:
    """The output of a command that must end well."""
    done = run(command, folder=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
