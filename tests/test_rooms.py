"""Knowledge goes one way: no room imports one to its right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / 'pyg_sar'

MAY_IMPORT = {
    'monitor': {'monitor'},
    'shard': {'shard'},
    'comm': {'comm', 'monitor', 'shard'},
    'merge': set(),
    'kernels': {'kernels', 'shard'},
    'aggregate': {'aggregate', 'comm', 'kernels', 'merge', 'shard'},
    'models': {'aggregate', 'comm', 'models', 'shard'},
    'conv': {'aggregate', 'comm', 'conv', 'merge', 'models', 'monitor', 'shard'},
    'recompute': {'recompute'},
    'norm': {'comm', 'norm', 'recompute'},
    'loss': {'comm'},
    'memory': set(),
    'load': {'comm', 'monitor', 'shard'},
    'restrict': {'comm', 'shard'},
    'fingerprint': {'comm', 'conv'},
    'wrap': {'comm', 'conv', 'models', 'monitor', 'norm', 'recompute'},
    'ddp': {'comm', 'conv', 'fingerprint', 'memory', 'monitor', 'wrap'},
    'profiling': {'comm', 'conv', 'monitor', 'profiling'},
    'checkpoint': {'checkpoint', 'comm', 'shard'},
    'transforms': {'comm', 'conv', 'shard', 'transforms'},
    'partitioner': {'partitioner', 'shard'},
    'partition': {'partitioner'},
    'inspection': {'inspection', 'partitioner', 'shard'},
    'describe': {'inspection', 'partitioner', 'shard'},
    'planner': {'conv', 'loss', 'monitor', 'planner', 'shard', 'wrap'},
    'plan': {'planner'},
}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


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


@pytest.mark.parametrize(
    'room', ['shard', 'partitioner', 'partition', 'inspection', 'merge', 'kernels']
)
def test_only_comm_knows_other_ranks(room: str) -> None:
    for path in _files(room):
        assert not any(name.startswith('torch.distributed') for name in _imports(path)), path
