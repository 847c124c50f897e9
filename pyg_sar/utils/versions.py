"""Which versions of packages are installed."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """The version of a package that is installed, of PyG also a nightly one; None if it is not."""
    for name in (package, 'pyg-nightly') if package == 'torch_geometric' else (package,):
        with suppress(PackageNotFoundError):
            return version(name) if name == package else f'{version(name)} of {name}'
    return None
