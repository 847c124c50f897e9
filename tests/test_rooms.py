"""Knowledge goes one way: rooms, the folders in them and files import in one order, no circles."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'pyg_sar'

MAY_IMPORT = {
    '__main__': {'command_line'},
    'command_line': set(),
    'report': set(),
    'monitor': {'monitor'},
    'compiled': {'compiled'},
    'shard': {'compiled', 'shard'},
    'comm': {'comm', 'monitor', 'shard'},
    'merge': {'shard'},
    'kernels': {'compiled', 'kernels', 'shard'},
    'aggregate': {'aggregate', 'comm', 'kernels', 'merge', 'shard'},
    'draws': set(),
    'recipes': set(),
    'over_all_nodes': {'comm', 'draws', 'over_all_nodes', 'shard'},
    'rows': {'aggregate', 'comm', 'monitor', 'over_all_nodes', 'recipes', 'rows', 'shard'},
    'dropout': {'comm', 'draws', 'dropout', 'recipes', 'recompute', 'rows', 'shard'},
    'conv': {'aggregate', 'comm', 'conv', 'dropout', 'merge', 'monitor', 'rows', 'shard'},
    'recompute': {'comm', 'recipes', 'recompute', 'rows'},
    'norm': {'comm', 'norm', 'rows'},
    'own_rows': {'comm', 'draws', 'own_rows', 'rows', 'shard'},
    'checking': {
        'checking',
        'comm',
        'conv',
        'ddp',
        'load',
        'over_all_nodes',
        'own_rows',
        'partitioner',
        'rows',
    },
    'memory': {'monitor'},
    'launching': {'comm', 'launching', 'monitor'},
    'load': {'comm', 'launching', 'monitor', 'rows', 'shard'},
    'sampling': {'comm', 'draws', 'monitor', 'over_all_nodes', 'rows', 'sampling', 'shard'},
    'restricted_layers': {'comm', 'shard'},
    'wrap': {
        'comm',
        'compiled',
        'conv',
        'dropout',
        'monitor',
        'norm',
        'recompute',
        'rows',
        'shard',
    },
    'ddp': {
        'comm',
        'compiled',
        'conv',
        'ddp',
        'memory',
        'norm',
        'over_all_nodes',
        'own_rows',
        'rows',
        'shard',
        'wrap',
    },
    'profiling': {'command_line', 'comm', 'conv', 'ddp', 'monitor', 'profiling', 'report'},
    'checkpoint': {
        'checkpoint',
        'comm',
        'ddp',
        'dropout',
        'over_all_nodes',
        'own_rows',
        'rows',
        'shard',
    },
    'transforms': {'checkpoint', 'comm', 'conv', 'partitioner', 'rows', 'shard', 'transforms'},
    'partitioner': {'command_line', 'partitioner', 'shard'},
    'partition': {'command_line', 'partitioner'},
    'inspection': {'inspection', 'partitioner', 'report', 'shard'},
    'describe': {'command_line', 'inspection', 'partitioner', 'shard'},
    'planner': {
        'command_line',
        'comm',
        'conv',
        'ddp',
        'monitor',
        'planner',
        'over_all_nodes',
        'shard',
        'wrap',
        'sampling',
    },
    'plan': {'command_line', 'monitor', 'planner'},
}

FOLDERS = {
    'rows': ('unasked', 'rules'),
    'conv': ('call', 'inspect', 'message', 'around', 'reuse'),
    'comm': ('reshard', 'faults'),
    'shard': ('read', 'format'),
    'sampling': ('seeds', 'ask', 'draw'),
    'partitioner': ('sources', 'write', 'methods', 'graph', 'on_disk'),
}
"""The folders of a room: each may import those after it."""

MAX_FILES = 12


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


def test_every_room_has_its_rule() -> None:
    rooms = {p.stem for p in PACKAGE.glob('*.py')} | {
        p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob('*.py'))
    }
    assert rooms - {'__init__'} == set(MAY_IMPORT)


@pytest.mark.parametrize('room', MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    for path in _files(room):
        own = {name.split('.')[1] for name in _imports(path) if name.startswith('pyg_sar.')}
        assert own <= MAY_IMPORT[room], path


@pytest.mark.parametrize('room', FOLDERS)
def test_folders_of_a_room_have_their_order(room: str) -> None:
    folders = FOLDERS[room]
    assert {p.name for p in (PACKAGE / room).iterdir() if any(p.glob('*.py'))} == set(folders)
    for i, folder in enumerate(folders):
        for path in (PACKAGE / room / folder).rglob('*.py'):
            for name in _imports(path):
                before = [f'pyg_sar.{room}.{other}.' for other in folders[:i]]
                assert not name.startswith(tuple(before)), f'{path} imports {name}'


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: _imports(path) & _modules().keys() for name, path in _modules().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f'a circle of imports: {error.args[1]}')


def test_no_folder_is_a_long_list() -> None:
    folders = [PACKAGE, *(path for path in PACKAGE.rglob('*') if path.is_dir())]
    counts = {folder: len(list(folder.glob('[!_]*.py'))) for folder in folders}
    assert {f: n for f, n in counts.items() if n > MAX_FILES} == {}


@pytest.mark.parametrize(
    'room', ['shard', 'partitioner', 'partition', 'inspection', 'merge', 'kernels']
)
def test_only_comm_knows_other_ranks(room: str) -> None:
    for path in _files(room):
        assert not any(name.startswith('torch.distributed') for name in _imports(path)), path
