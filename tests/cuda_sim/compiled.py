"""Compiles the simulation for the installed torch, once on a machine.

About a minute with two cores. What is compiled stays in the user's cache, in a folder named for the
sources, the version of torch and that of Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from subprocess import PIPE

HERE = Path(__file__).parent
LIBRARIES = {
    'libsimulated_cuda.so': (['device.cpp', 'operators.cpp', 'restrictions.cpp'], ['torch_cpu']),
    '_simulated_nccl.so': (['group.cpp'], ['torch_python', 'torch', 'torch_cpu']),
}
"""Their sources, and what they are linked with beside c10."""


class CannotCompileError(RuntimeError):
    """There is no compiler, or no such torch."""


def torch_folder() -> Path:
    """Where torch is; it is not imported."""
    spec = importlib.util.find_spec('torch')
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def libraries() -> Path:
    """The folder of both libraries, compiled unless they are there.

    Raises:
        CannotCompileError: With the reason in a sentence.
    """
    version = importlib.metadata.version('torch')
    if '+cu' in version:
        raise CannotCompileError(f'torch {version} has CUDA itself')
    sources = sorted([*HERE.glob('*.cpp'), *HERE.glob('*.h'), Path(__file__)])
    told = hashlib.sha256(f'{version} {sys.version}'.encode())
    for source in sources:
        told.update(source.read_bytes())
    cache = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
    folder = cache / 'pyg_sar' / 'cuda_sim' / told.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).exists() for name in LIBRARIES):
            _compile(folder)
    return folder


def _compile(folder: Path) -> None:
    compiler = shutil.which('g++')
    if compiler is None:
        raise CannotCompileError('there is no g++')
    torch = torch_folder()
    include = [torch / 'include', torch / 'include/torch/csrc/api/include']
    include.append(Path(sysconfig.get_paths()['include']))
    running = []
    for name, (sources, linked) in LIBRARIES.items():
        module = name.removesuffix('.so')
        command = [
            *(compiler, '-O0', '-std=c++20', '-shared', '-fPIC', '-w', f'-I{HERE}'),
            *(f'-DTORCH_EXTENSION_NAME={module}', f'-L{torch / "lib"}'),
            *(f'-I{path}' for path in include),
            *('-x', 'c++', '-', '-o', str(folder / f'{name}.part')),
            *(f'-l{library}' for library in (*linked, 'c10')),
        ]
        process = subprocess.Popen(command, stdin=PIPE, stderr=PIPE, text=True)
        assert process.stdin is not None
        # All in one, as most of the time goes into torch's headers.
        process.stdin.write(''.join(f'#include "{source}"\n' for source in sources))
        process.stdin.flush()
        running.append((name, process))
    for name, process in running:
        _, told = process.communicate()
        if process.returncode:
            errors = [line for line in told.splitlines() if 'error' in line]
            raise CannotCompileError(f'{name} does not compile: {" | ".join(errors[:5]) or told}')
        (folder / f'{name}.part').rename(folder / name)
