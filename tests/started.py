"""Starts programs, without what an outer launcher has put into the environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = ('python', '-m', 'torch.distributed.run')
_OF_LAUNCHERS = (
    *('RANK', 'WORLD_SIZE', 'MASTER_', 'LOCAL_', 'TORCHELASTIC_'),
    *('OMPI_', 'PMI', 'SLURM'),
)


def environment(**variables: str | None) -> dict[str, str]:
    """This process's, without a launcher's variables, with one thread, and with others.

    Programs find the modules that tests find. A variable that is given as None is left out.
    """
    own = [path for path in sys.path if Path(path).is_relative_to(ROOT / 'tests')]
    path = os.pathsep.join(filter(None, [str(ROOT), *own, os.environ.get('PYTHONPATH')]))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OF_LAUNCHERS)}
    chosen = {**kept, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path, **variables}
    return {name: value for name, value in chosen.items() if value is not None}


def start(
    command: Sequence[object],
    *,
    folder: Path | None = None,
    said: IO[str] | None = None,
    is_interrupted: bool = False,
    **variables: str | None,
) -> subprocess.Popen[str]:
    """Starts a command in a folder; ``python`` is this one.

    What it says goes to pipes, or all to the file `said`. One that is to be interrupted is the
    first of a group of its own.
    """
    return subprocess.Popen(
        [sys.executable if word == 'python' else str(word) for word in command],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.PIPE,
        stdout=said or subprocess.PIPE,
        stderr=subprocess.STDOUT if said else subprocess.PIPE,
        text=True,
        start_new_session=is_interrupted,
        preexec_fn=heed_interrupts if is_interrupted else None,
    )


def run(
    command: Sequence[object],
    *,
    given: str | None = None,
    timeout: float = 600,
    folder: Path | None = None,
    **variables: str | None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; `given` is what it reads."""
    with start(command, folder=folder, **variables) as process:
        try:
            out, err = process.communicate(given, timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def output(command: Sequence[object], **options: str | Path | None) -> str:
    """The output of a command that must end well."""
    done = run(command, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def heed_interrupts() -> None:
    """For a ``preexec_fn``: a shell starts what runs in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return ') Z ' not in Path(f'/proc/{pid}/stat').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Asks again and again, up to a time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)
