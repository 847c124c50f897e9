"""Private names of torch, PyG and pymetis: all are listed, and one that is gone is told."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import list_private_names
import pytest
import torch
from small_graphs import cut, small_graph
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, SAGEConv

import pyg_sar
from pyg_sar.utils.private_names import NAMES, find, missing

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / 'pyg_sar'
SOURCES = sorted(PACKAGE.rglob('*.py'))
LIST = PACKAGE / 'ground' / 'private_names.py'

ROWS = {name: row for row in NAMES for name in row.names.split()}
OF_OBJECTS = {'torch_geometric.data.Data._cached_attr', 'torch.nn.RNNBase._flat_weights'}
"""What objects get when they are used, or made with arguments."""

PYTHONS = {'_getframe', '_exit', '_replace', '_fields', '_C'}
ENDINGS = ('_forward_hooks', '_forward_pre_hooks', '_foreach_', '_fused_', '_global_')
"""Parts that are looked for where the sources put a name together."""


def _private(name: str) -> bool:
    return bool(re.fullmatch('_[a-zA-Z]\\w*', name))


@functools.cache
def _of_torch() -> set[str]:
    """The private names that objects of torch and PyG have."""
    data = Data(x=torch.ones(1, 1))
    data.is_node_attr('x')
    owners = (
        *(torch, torch._C, torch.ones(1), torch.ones(1).untyped_storage(), torch.nn.GRU(1, 1)),
        *(torch.storage.TypedStorage, torch.nn.BatchNorm1d(1), torch.ops.aten.add.Tensor),
        *(SAGEConv(1, 1), GCNConv(1, 1), data.stores[0], HeteroData(v={})['v'], HeteroData()),
    )
    return {name for owner in owners for name in dir(owner) if _private(name)}


@functools.cache
def _made_here() -> set[str]:
    """What the package itself defines, and gives to objects."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found - _of_torch()


def _uses(path: Path) -> set[str]:
    """The private names of others that a file uses: attributes, imports and words."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    found, others, ours = set(), set(), _made_here()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not (node.module or '').startswith('pyg_sar'):
            others |= {each.asname or each.name for each in node.names}
            is_below = any(map(_private, (node.module or '').split('.')))
            found |= {each.name for each in node.names if is_below or _private(each.name)}
        elif isinstance(node, ast.Import):
            others |= {each.asname or each.name.partition('.')[0] for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            is_theirs = bool(re.fullmatch(r'[\w.]+', owner)) and owner.split('.')[0] in others
            is_below = is_theirs and any(map(_private, owner.split('.')))
            is_used = is_theirs or (owner not in ('self', 'cls') and node.attr not in ours)
            if is_below or (_private(node.attr) and is_used):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split() if '\n' not in node.value else []
            found |= {w for w in map(_first, words) if w in _of_torch() or _is_operation(w)}
    return found


def _first(word: str) -> str:
    return word.partition('.')[0]


def _is_operation(word: str) -> bool:
    return _private(word) and hasattr(torch.ops.aten, word)


def test_contributing_has_the_table_of_today() -> None:
    page = list_private_names.PAGE.read_text(encoding='utf-8')
    assert page == list_private_names.replaced(page), 'make private-names'


def test_every_name_stands_in_one_row() -> None:
    assert len(ROWS) == sum(len(row.names.split()) for row in NAMES)
    assert len(NAMES) <= 40


@pytest.mark.parametrize('name', ROWS)
def test_a_name_exists_and_is_used(name: str) -> None:
    if name in OF_OBJECTS:
        assert name.rpartition('.')[2] in _of_torch()
    else:
        find(name)
    text = ''.join(path.read_text('utf-8') for path in SOURCES if path != LIST)
    last = name.removesuffix('.default').rpartition('.')[2]
    assert re.search(rf'\b{last}\b', text) or any(e in last and e in text for e in ENDINGS)


def test_every_private_name_that_is_used_is_in_the_table() -> None:
    known = {part for name in ROWS for part in re.split(r'[.()]+', name)} | PYTHONS
    assert {p: new for p in SOURCES if p != LIST and (new := _uses(p) - known)} == {}


@pytest.fixture(scope='module')
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pyg_sar says and does without each name; see taken_away.py."""
    root = cut(small_graph(), 2, tmp_path_factory.mktemp('graph') / 'parts')
    done = subprocess.run(
        [sys.executable, str(ROOT / 'tests' / 'taken_away.py'), str(root), '', *ROWS],
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONWARNINGS': 'ignore'},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize('name', ROWS)
def test_a_name_that_is_gone_is_told(name: str, without: dict[str, str]) -> None:
    told, sentence, kind = without[name], str(missing(name)), ROWS[name].without
    package = name.partition('.')[0]
    assert f"'{name}'" in sentence
    assert f"pip install '{package}>=" in sentence
    if not kind:
        assert told == f'ImportError: {sentence}'
    elif kind.startswith('refused: functions'):
        assert "'many_add' of rows that are spread over the ranks is not known" in told
    elif kind.startswith('refused: '):
        assert sentence in told
        assert 'AttributeError' not in told
    elif kind.startswith('as if: the timeout'):
        assert told.split(' | ')[0] == 'None'
    elif kind.startswith('as if: '):
        assert told.split(' | ')[0] == without[''].split(' | ')[0]
    else:
        assert kind.startswith('told by a warning: ')
        assert told.split(' | ')[0] == without[''].split(' | ')[0]
        assert ('_builtin' not in name) or sentence in told


def test_attributes_of_edges_that_pyg_takes_for_those_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    graph = Data(x=torch.ones(2, 1), edge_index=edges, edge_attr=torch.ones(2, 1))
    pyg_sar.partition_graph(graph, 1, tmp_path / 'parts')
    assert pyg_sar.load_shard(tmp_path / 'parts').is_edge_attr('edge_attr')
    monkeypatch.setattr(Data, 'is_edge_attr', lambda data, name: False)
    with pytest.raises(ImportError, match='_cached_attr'):
        pyg_sar.load_shard(tmp_path / 'parts')
