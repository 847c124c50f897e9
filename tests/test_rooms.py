"""Knowledge goes one way: rooms and files import in one order, no circles."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'pyg_sar'

FLOORS = (
    {'__main__'},
    {'launch'},
    {'loader', 'checkpoint'},
    {'nn'},
    {'rows'},
    {'ops'},
    {'partition', 'comm'},
    {'shard'},
    {'monitor'},
    {'utils'},
)
"""A room may import itself and the rooms of later floors."""


@cache
def _modules() -> dict[str, Path]:
    """Every module of the package, by its name."""
    return {
        '.'.join(path.relative_to(ROOT).with_suffix('').parts): path
        for path in PACKAGE.rglob('*.py')
        if path.name != '__init__.py'
    }


@cache
def _imports(path: Path) -> frozenset[str]:
    """What a file imports, but for types; a module that is imported by name as that module."""
    found = set()
    tree = ast.parse(path.read_text(encoding='utf-8'))
    tree.body = [node for node in tree.body if not _is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            full = {f'{node.module}.{alias.name}' for alias in node.names}
            modules = full & _modules().keys()
            found |= modules or {node.module}
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return frozenset(found)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING'


def _files(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob('*.py')) if folder.is_dir() else [PACKAGE / f'{room}.py']


def test_every_room_has_its_floor() -> None:
    rooms = {p.stem for p in PACKAGE.glob('*.py')} | {
        p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob('*.py'))
    }
    assert sorted(rooms - {'__init__'}) == sorted(room for floor in FLOORS for room in floor)


@pytest.mark.parametrize('room', sorted(set().union(*FLOORS)))
def test_imports_go_downward(room: str) -> None:
    floor = next(i for i, rooms in enumerate(FLOORS) if room in rooms)
    may = {room}.union(*FLOORS[floor + 1 :])
    for path in _files(room):
        own = {name.split('.')[1] for name in _imports(path) if name.startswith('pyg_sar.')}
        assert own <= may, path


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: _imports(path) & _modules().keys() for name, path in _modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f'a circle of imports: {error.args[1]}')


@pytest.mark.parametrize('room', ['shard', 'partition'])
def test_only_comm_knows_other_ranks(room: str) -> None:
    for path in _files(room):
        assert not any(name.startswith('torch.distributed') for name in _imports(path)), path
