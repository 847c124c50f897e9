"""Inside partitioner and shard knowledge goes one way, too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / 'pyg_sar'

MAY_IMPORT = {
    'partitioner/on_disk': set(),
    'partitioner/graph': {'on_disk'},
    'partitioner/sources': {'on_disk', 'graph'},
    'partitioner/methods': {'on_disk', 'graph'},
    'partitioner/write': {'on_disk', 'graph'},
    'partitioner/assignment.py': {'on_disk', 'graph', 'methods'},
    'shard/format': set(),
    'shard/shard.py': set(),
    'shard/edge_index.py': {'shard'},
    'shard/plan.py': {'bags', 'edge_index', 'shard'},
    'shard/read': {'bags', 'edge_index', 'format', 'plan', 'schedule', 'shard'},
}


@pytest.mark.parametrize('folder', MAY_IMPORT)
def test_imports_inside_a_room_go_one_way(folder: str) -> None:
    room = folder.split('/')[0]
    path = PACKAGE / folder
    own = path.stem
    for file in sorted(path.rglob('*.py')) if path.is_dir() else [path]:
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.ImportFrom) and (node.module or '').startswith(
                f'pyg_sar.{room}.'
            ):
                found = str(node.module).split('.')[2]
                assert found in MAY_IMPORT[folder] | {own}, (file, found)
