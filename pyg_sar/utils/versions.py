"""Which versions pyg_sar is tested with, and a warning where others are installed.

pip keeps to these bounds. Who installs a newer version by force is warned once, at import: names of
torch that are not public may have changed (:mod:`pyg_sar.utils.private_names`).
"""

from __future__ import annotations

import platform
import re
import warnings
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

BOUNDS = {
    'torch': '>=2.5,<2.16',
    'torch_geometric': '>=2.6.1,<2.9',
    'numpy': '>=1.26,<3',
    'pymetis': '>=2025.2,<2026',
    'numba': '>=0.60,<1',
}
"""The bounds of pyproject.toml, by package."""

PYTHON = '>=3.10,<3.14'
"""The versions of Python that the tests have run on."""


def installed(package: str) -> str | None:
    """The version of a package that is installed, of PyG also a nightly one; None if it is not."""
    for name in (package, 'pyg-nightly') if package == 'torch_geometric' else (package,):
        with suppress(PackageNotFoundError):
            return version(name) if name == package else f'{version(name)} of {name}'
    return None


def pip_command(package: str) -> str:
    """The command that installs a tested version."""
    return f"pip install '{package}{BOUNDS[package]}'"


def warn_of_untested() -> None:
    """Gives one warning where a version is out of its bounds."""
    versions = {'Python': (platform.python_version(), PYTHON)}
    versions |= {name: (installed(name) or '', bounds) for name, bounds in BOUNDS.items()}
    others = {name: pair for name, pair in versions.items() if pair[0] and not _is_in(*pair)}
    if others:
        text = ', '.join(f'{name} {bounds} (got {own})' for name, (own, bounds) in others.items())
        commands = ' and '.join(pip_command(name) for name in others if name in BOUNDS)
        way = f': {commands}' if commands else ''
        warnings.warn(f'pyg_sar is tested with {text}{way}', stacklevel=3)


def _is_in(own: str, bounds: str) -> bool:
    least, end = re.findall(r'[\d.]+', bounds)
    return not own.endswith('nightly') and _numbers(least) <= _numbers(own) < _numbers(end)


def _numbers(text: str) -> tuple[int, ...]:
    """``'2.14.1+cu130'`` as (2, 14, 1), ``'2.16.0a0'`` as (2, 16, 0)."""
    match = re.match(r'[\d.]+', text)
    return tuple(int(number) for number in match[0].split('.') if number) if match else ()
