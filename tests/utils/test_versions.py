"""Bounds of versions: pip, classifiers and the table of CONTRIBUTING.md say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
BOUNDS = dict(re.findall(r"'(\w+)(>=[^',]*,<[^']*)'", PROJECT))
CONTRIBUTING = (ROOT / 'CONTRIBUTING.md').read_text(encoding='utf-8')


def _tested() -> list[list[str]]:
    """The rows of the table: torch, PyG, Python, and what was run."""
    section = CONTRIBUTING.split('## Tested versions\n')[1].split('\n## ')[0]
    rows = [line.strip('| ').split(' | ') for line in section.splitlines() if line[:3] == '| 2']
    assert len(rows) >= 5
    return rows


def _least_and_end(bounds: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, each.split('.'))) for each in re.findall(r'[\d.]+', bounds)]


def test_classifiers_are_the_pythons_that_were_tested() -> None:
    listed = {tuple(map(int, v.split('.'))) for v in re.findall(r'Python :: (3\.\d+)', PROJECT)}
    tested = {tuple(map(int, row[2].split('.')[:2])) for row in _tested()}
    assert listed == tested
    least = '.'.join(map(str, min(tested)))
    assert f"requires-python = '>={least}'" in PROJECT


@pytest.mark.parametrize(('package', 'column'), [('torch', 0), ('torch_geometric', 1)])
def test_both_ends_of_the_bounds_were_tested(package: str, column: int) -> None:
    tested = sorted(tuple(map(int, row[column].split('.'))) for row in _tested())
    least, end = _least_and_end(BOUNDS[package])
    assert tested[0][: len(least)] == least
    assert tested[-1][0] == end[0]
    assert tested[-1][1] + 1 == end[1]


def test_the_locks_are_within_the_bounds() -> None:
    for lock in ('requirements.lock', 'requirements-oldest.lock'):
        text = (ROOT / lock).read_text(encoding='utf-8')
        for package, bounds in BOUNDS.items():
            found = re.search(rf'^{package.replace("_", "[-_]")}==([\d.]+)', text, re.M)
            assert package == 'numba' or found, (lock, package)
            least, end = _least_and_end(bounds)
            own = None if found is None else tuple(map(int, found[1].split('.')))
            assert own is None or least <= own < end, (lock, package)
