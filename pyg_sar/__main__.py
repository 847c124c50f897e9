"""The command ``pyg-sar``, also ``python -m pyg_sar``: its programs, and the installed packages."""

from __future__ import annotations

import platform
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import torch
import torch.distributed as dist

import pyg_sar
from pyg_sar.commands.command_line import text_table
from pyg_sar.launch.fast_start import allocator
from pyg_sar.utils.memory import has_huge_pages
from pyg_sar.utils.versions import installed

_EXTRAS = {
    'kaminpar': ('kaminpar', '--method kaminpar'),
    'torch-sparse': ('torch_sparse', 'METIS where pymetis is missing; used by PyG'),
    'pyg-lib': ('pyg_lib', 'METIS where pymetis is missing; used by PyG'),
    'fast': ('numba', 'faster attention on a CPU; an allocator for pyg-sar run'),
    'plot': ('matplotlib', 'describe --plot'),
    'ogb': ('ogb', 'datasets of OGB'),
    'parquet': ('pyarrow', 'tables of edges to partition'),
}
"""By extra, the package that it installs and what it is for."""


_PROGRAMS = {
    'run': 'runs a program as torchrun does, with a faster allocator and threads',
    'partition': 'cuts a graph into one part per rank',
    'describe': 'says what lies in a folder of parts',
    'plan': 'predicts memory, traffic and CPU time of training',
    'run-in-turns': 'runs a program as all ranks, in turn, in one process',
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a program by its name; without a name shows the programs and the installed packages."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ['']
    if name in _PROGRAMS:
        before, sys.argv = sys.argv, [name, *rest]
        try:
            runpy.run_module(
                f'pyg_sar.{name.replace("-", "_")}', run_name='__main__', alter_sys=True
            )
        except SystemExit as end:
            if end.code is not None and not isinstance(end.code, int):
                raise  # Python prints its text
            return end.code or 0
        finally:
            sys.argv = before
        return 0
    if name not in ('', '-h', '--help'):
        print(f"error: no program '{name}': one of {', '.join(_PROGRAMS)}", file=sys.stderr)
        return 2
    _show_installed()
    print()
    print(text_table([(f'pyg-sar {name}', text) for name, text in _PROGRAMS.items()], 2))
    print('pyg-sar PROGRAM --help shows the options of a program')
    return 0


def _show_installed() -> None:
    packages = ('torch', 'torch_geometric', 'numpy', 'pymetis')
    versions = ', '.join(f'{name} {installed(name)}' for name in packages)
    has_devices = torch.cuda.is_available()
    backends = {
        'gloo': dist.is_gloo_available(),
        'nccl': dist.is_nccl_available() and has_devices,
        'mpi': dist.is_mpi_available(),
    }
    print(f'pyg_sar {pyg_sar.__version__}')
    print(f'Python {platform.python_version()}, {versions}')
    print(f'backends  {", ".join(name for name, is_there in backends.items() if is_there)}')
    print(f'devices   cpu{f", {torch.cuda.device_count()} x cuda" if has_devices else ""}')
    pages = 'yes' if has_huge_pages() else 'no'
    print(f'memory    huge pages: {pages}; allocator: {allocator()}')
    rows = [
        (extra, (installed(package) or '?') if find_spec(package) else 'not installed', use)
        for extra, (package, use) in _EXTRAS.items()
    ]
    print(text_table([('extra', 'version', 'gives'), *rows], 3))
    print("install an extra with pip install 'pyg_sar[EXTRA]'")


if __name__ == '__main__':
    sys.exit(main())
