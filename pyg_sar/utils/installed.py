"""What the installed packages have: their versions, private names, and loops that numba compiles.

Names of torch and PyG that are not public may go in any version; tests/utils/private_names.md lists
them. One that is gone is an error where it is used; what only a corner needs is looked for there by
:func:`find`.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import numpy as np


def _import_pyg() -> None:
    """Imports torch and PyG, without collections of garbage: they find none, and take a sixth."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # PyG prepares functions for TorchScript, which torch has given up: not for users.
            warnings.filterwarnings('ignore', '.torch.jit.[a-z_]+. is (deprecated|not supported)')
            warnings.filterwarnings('ignore', "Failing to pass a value to the 'type_params'")
            importlib.import_module('torch_geometric.nn')
    finally:
        if collects:
            gc.enable()


_import_pyg()


def installed(package: str) -> str | None:
    """The version of a package that is installed, of PyG also a nightly one; None if it is not."""
    for name in (package, 'pyg-nightly') if package == 'torch_geometric' else (package,):
        with suppress(PackageNotFoundError):
            return version(name) if name == package else f'{version(name)} of {name}'
    return None


def reader(module: str, path: object, package: str = 'pyarrow') -> Any:
    """A module of the extra ``fast`` that reads a file; a ValueError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"expected {package} to be installed to read '{path}' (got: {error}); install it with "
            "pip install 'pyg_sar[fast]'"
        ) from error


def find(name: str) -> Any:
    """The object of a name with dots; an ImportError where it is gone."""
    try:
        return resolve_name(name)
    except (AttributeError, ImportError):
        raise missing(name) from None


def find_or_none(name: str) -> Any:
    """As :func:`find`, or None."""
    with suppress(ImportError):
        return find(name)
    return None


def missing(name: str) -> ImportError:
    """The error where a private name is gone."""
    package = name.partition('.')[0]
    return ImportError(
        f"pyg_sar needs '{name}', which {package} {installed(package)} does not have: install a "
        "version that it is tested with ('pip check' tells which)"
    )


@cache
def loops(dtype: str = 'float32') -> ModuleType | None:
    """:mod:`pyg_sar.utils.numba_loops`, or None without numba.

    Also None where numba may not compile (its variable ``NUMBA_DISABLE_JIT``) or cannot, such as
    where it does not fit the installed numpy; then with a warning. The first call loads the loops
    for rows of `dtype`, which takes half a second and 20 MiB; the first on this machine compiles
    them for some seconds, for all processes. Loops for other rows, and other numbers of
    heads, are compiled at their first call.
    """
    if os.environ.get('NUMBA_DISABLE_JIT', '0') not in ('', '0'):
        return None
    try:
        from pyg_sar.utils import numba_loops

        rows, index, ptr = np.empty(0, dtype), np.empty(0, np.int64), np.zeros(1, np.int32)
        edges = ptr, ptr[:0], index, ptr[:0]
        of_edges = *edges, (0,), 0, 0, rows.dtype.type(0), 0
        module: Any = numba_loops
        last = module.read_rows
        with _compiled_once(numba_loops, last.stats.cache_path):
            module.sums_and_dots(rows, None, rows, None, rows, *edges, 1, 1, 0, 0, True)
            module.sums_and_dots(*[rows] * 5, *edges, 1, 1, 0, 0, True)
            module.attention_weights(*[rows] * 5, *of_edges, 2)
            for target in (None, rows):
                module.gradients_of_scores(target, *[rows] * 6, *of_edges, 1)
            module.add_rows(rows, index, rows, 1)
            last(rows, rows, index, 1)
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name in ('llvmlite', 'numba')
        if not is_missing:
            warnings.warn(f'numba is installed but not used ({error})', stacklevel=2)
        return None
    return numba_loops


@contextmanager
def _compiled_once(module: ModuleType, folder: str | None) -> Iterator[None]:
    """Where numba has kept no loops of a module in `folder`, one process compiles, others wait."""
    with ExitStack() as stack:
        if folder and not _has_loops(module, folder):
            with suppress(OSError):  # where files cannot be locked all compile
                lock = stack.enter_context(open(Path(folder, 'numba_loops.lock'), 'w'))
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _has_loops(module, folder):
                text = 'pyg_sar: compiling loops, once on this machine ...'
                print(text, file=sys.stderr, flush=True)
        yield


def _has_loops(module: ModuleType, folder: str) -> bool:
    """Whether the last loop is there, newer than its source; if numba takes it is not seen."""
    with suppress(OSError):
        source = Path(str(module.__file__))
        kept = Path(folder).glob(f'{source.stem}.read_rows-*.nbi')
        return any(file.stat().st_mtime >= source.stat().st_mtime for file in kept)
    return False
