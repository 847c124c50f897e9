"""The environment variables that make a training fast.

An allocator that keeps freed memory saves the page faults of every epoch. It has to be loaded
before the process begins: ``pyg-sar run`` preloads it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files, version

from pyg_sar.utils import malloc

ALLOCATOR = 'cmeel-mimalloc'
"""The package of the allocator, mimalloc; extra ``fast`` installs it."""

_LIBRARY = 'libmimalloc.so'
THREADS = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS')
"""Where one of these is set, it says how many threads a rank has."""


def fast_environment(num_ranks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ranks on this machine need besides those in `environ`.

    A variable that the user has set stays. Those that importing pyg_sar has set are included.
    """
    variables = dict(malloc.SET)
    if not any(environ.get(name) for name in THREADS):
        cores = len(os.sched_getaffinity(0))
        variables['OMP_NUM_THREADS'] = str(max(1, cores // num_ranks))
    library = allocator_library()
    if library is not None and not environ.get('LD_PRELOAD'):
        # The allocator keeps memory for the next tensor, and never gives it back.
        variables |= {'LD_PRELOAD': library} | (
            {} if 'MIMALLOC_PURGE_DELAY' in environ else {'MIMALLOC_PURGE_DELAY': '-1'}
        )
    return variables


def allocator_library() -> str | None:
    """The path of the allocator's library, where the package is installed."""
    try:
        paths = files(ALLOCATOR) or []
    except PackageNotFoundError:
        return None
    return next((str(path.locate()) for path in paths if path.name == _LIBRARY), None)


def has_allocator() -> bool:
    """Whether an allocator is preloaded in this process."""
    return 'malloc' in os.environ.get('LD_PRELOAD', '')


def allocator() -> str:
    """Which allocator this process has, in words."""
    preloaded = os.environ.get('LD_PRELOAD', '')
    if preloaded and preloaded == allocator_library():
        return f'mimalloc {version(ALLOCATOR)}'
    if has_allocator():
        return preloaded
    state = 'not installed' if allocator_library() is None else 'installed'
    return f"the C library's (mimalloc is {state}; pyg-sar run preloads it)"
