"""Bounds of versions: pip, classifiers and the table of CONTRIBUTING say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pyg_sar.utils import versions

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
CONTRIBUTING = (ROOT / 'CONTRIBUTING.md').read_text(encoding='utf-8')


def _tested() -> list[list[str]]:
    """The rows of the table: torch, PyG, Python, and what was run."""
    section = CONTRIBUTING.split('## Tested versions\n')[1].split('\n## ')[0]
    rows = [line.strip('| ').split(' | ') for line in section.splitlines() if line[:3] == '| 2']
    assert len(rows) >= 5
    return rows


def _least_and_end(bounds: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, each.split('.'))) for each in re.findall(r'[\d.]+', bounds)]


def test_pip_has_the_bounds() -> None:
    asked = dict(re.findall(r"'(\w+)(>=[^']*)'", PROJECT))
    assert {name: asked.get(name) for name in versions.BOUNDS} == versions.BOUNDS


def test_classifiers_are_the_pythons_that_were_tested() -> None:
    listed = {tuple(map(int, v.split('.'))) for v in re.findall(r'Python :: (3\.\d+)', PROJECT)}
    tested = {tuple(map(int, row[2].split('.')[:2])) for row in _tested()}
    least, end = _least_and_end(versions.PYTHON)
    assert listed == tested == {(3, minor) for minor in range(least[1], end[1])}
    assert f"requires-python = '>={'.'.join(map(str, least))}'" in PROJECT


@pytest.mark.parametrize(('package', 'column'), [('torch', 0), ('torch_geometric', 1)])
def test_both_ends_of_the_bounds_were_tested(package: str, column: int) -> None:
    tested = sorted(tuple(map(int, row[column].split('.'))) for row in _tested())
    least, end = _least_and_end(versions.BOUNDS[package])
    assert tested[0][: len(least)] == least
    assert tested[-1][0] == end[0]
    assert tested[-1][1] + 1 == end[1]


def test_the_locks_are_within_the_bounds() -> None:
    for lock in ('requirements.lock', 'requirements-oldest.lock'):
        text = (ROOT / lock).read_text(encoding='utf-8')
        for package, bounds in versions.BOUNDS.items():
            found = re.search(rf'^{package.replace("_", "[-_]")}==([\d.]+)', text, re.M)
            assert package == 'numba' or found, (lock, package)
            assert found is None or versions._is_in(found[1], bounds), (lock, package)


@pytest.mark.parametrize(
    ('own', 'is_in'),
    [
        ('2.5.0', True),
        ('2.14.1+cu130', True),
        ('2.15.9', True),
        ('2.16.0a0+git1234', False),
        ('2.16.0.dev20261101', False),
        ('2.4.1', False),
        ('3.0', False),
    ],
)
def test_what_is_within_bounds(own: str, is_in: bool) -> None:
    assert versions._is_in(own, '>=2.5,<2.16') == is_in


def test_other_versions_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        versions.warn_of_untested()  # these are tested
    found = {'torch': '2.16.0', 'torch_geometric': '2.9.0', 'numba': None}
    monkeypatch.setattr(versions, 'installed', lambda name: found.get(name, '2025.2'))
    monkeypatch.setitem(versions.BOUNDS, 'numpy', '>=2,<2026')
    with pytest.warns(UserWarning, match='pyg_sar is tested with') as told:
        versions.warn_of_untested()
    assert [str(each.message) for each in told] == [
        'pyg_sar is tested with torch >=2.5,<2.16 (got 2.16.0), torch_geometric >=2.6.1,<2.9 (got '
        "2.9.0): pip install 'torch>=2.5,<2.16' and pip install 'torch_geometric>=2.6.1,<2.9'"
    ]


def test_a_newer_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.platform, 'python_version', lambda: '3.14.2')
    with pytest.warns(UserWarning, match=r'Python >=3.10,<3.14 \(got 3.14.2\)$'):
        versions.warn_of_untested()


def test_import_gives_no_warning() -> None:
    command = [sys.executable, '-W', 'error', '-c', 'import pyg_sar']
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.parametrize('own', ['2.8.0.dev20261101', '2.9.0.dev20261127'])
def test_a_nightly_pyg_is_told(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    usual = versions.version

    def version(name: str) -> str:
        if name == 'torch_geometric':
            raise versions.PackageNotFoundError
        return own if name == 'pyg-nightly' else usual(name)

    monkeypatch.setattr(versions, 'version', version)
    with pytest.warns(UserWarning, match=rf'torch_geometric .* \(got {own} of pyg-nightly\)'):
        versions.warn_of_untested()
