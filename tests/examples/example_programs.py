"""Runs the examples as their users run them, or imports them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / 'examples'


def torchrun(num_ranks: int) -> list[object]:
    """How a program is started on ranks of this machine."""
    return ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', num_ranks]


def run(*command: object, folder: Path | None = None) -> str:
    """What a program prints; it must end well."""
    done = started(*command, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(*command: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path},
        capture_output=True,
        text=True,
        timeout=600,
    )


@cache
def example(name: str) -> Any:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f'{name}.py')
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # PyG looks for the module of a conv
    spec.loader.exec_module(module)
    return module
