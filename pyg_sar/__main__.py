"""``python -m pyg_sar``: what is installed here, for a first look or a report of a mistake."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

import torch
import torch.distributed as dist

import pyg_sar
from pyg_sar.commands.command_line import aligned
from pyg_sar.ground.versions import installed

_EXTRAS = {
    'kaminpar': ('kaminpar', '--method kaminpar'),
    'torch-sparse': ('torch_sparse', '--backend torch-sparse; used by PyG'),
    'pyg-lib': ('pyg_lib', '--backend pyg-lib; used by PyG'),
    'fast': ('numba', 'faster attention on a CPU'),
    'plot': ('matplotlib', 'describe --plot'),
    'ogb': ('ogb', 'datasets of OGB'),
    'parquet': ('pyarrow', 'tables of edges to partition'),
}
"""Of every extra what it installs, and what that gives."""


def main() -> int:
    """Prints it."""
    packages = ('torch', 'torch_geometric', 'numpy', 'pymetis')
    found = ', '.join(f'{name} {installed(name)}' for name in packages)
    has_devices = torch.cuda.is_available()
    backends = {
        'gloo': dist.is_gloo_available(),
        'nccl': dist.is_nccl_available() and has_devices,
        'mpi': dist.is_mpi_available(),
    }
    print(f'pyg_sar {pyg_sar.__version__}')
    print(f'Python {platform.python_version()}, {found}')
    print(f'backends  {", ".join(name for name, is_there in backends.items() if is_there)}')
    print(f'devices   cpu{f", {torch.cuda.device_count()} x cuda" if has_devices else ""}')
    rows = [
        (extra, (installed(package) or '?') if find_spec(package) else 'not installed', gives)
        for extra, (package, gives) in _EXTRAS.items()
    ]
    print('\n'.join(aligned([('extra', 'version', 'gives'), *rows], 3)))
    print("install an extra with pip install 'pyg_sar[EXTRA]'")
    return 0


if __name__ == '__main__':
    sys.exit(main())
