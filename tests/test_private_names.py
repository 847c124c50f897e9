"""CONTRIBUTING lists every private name of torch and PyG that the package uses, and they exist."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, SAGEConv, SGConv, SSGConv

import pyg_sar
from pyg_sar.checking.plain_model import check_caches

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'pyg_sar'
SOURCES = sorted(PACKAGE.rglob('*.py'))

_data = Data(x=torch.ones(1, 1))
_data.is_node_attr('x')

OWNERS: dict[str, Any] = {
    'Backend.Options': getattr(getattr(dist, 'ProcessGroupGloo', None), '_Options', None),
    'Data': _data,
    'GCNConv': GCNConv(1, 1),
    'HeteroData': HeteroData(),
    'MessagePassing': SAGEConv(1, 1),
    'Module': torch.nn.BatchNorm1d(1),
    'OpOverload': torch.ops.aten.add.Tensor,
    'ProcessGroup': dist.ProcessGroup,
    'RNNBase': torch.nn.GRU(1, 1),
    'SGConv': SGConv(1, 1),
    'SSGConv': SSGConv(1, 1, 0.5),
    'Storage': _data.stores[0],
    'NodeStorage': HeteroData(v={})['v'],
    'Tensor': torch.ones(1),
    'TypedStorage': torch.storage.TypedStorage,
    'UntypedStorage': torch.ones(1).untyped_storage(),
    'grad_fn': (torch.ones(1, requires_grad=True) * 2).grad_fn,
}
"""Whose attributes the table names; other names of it begin with a module."""

PYTHONS = {'_getframe', '_exit', '_replace', '_fields'}


BUILT = ('_forward_hooks', '_forward_pre_hooks', '_foreach_', '_fused_', '_global_')
"""Parts that are looked for where the sources put a name together."""


@functools.cache
def _table() -> dict[str, list[str]]:
    """The files of every name of the table."""
    text = (ROOT / 'CONTRIBUTING.md').read_text(encoding='utf-8')
    section = text.split('## Private names of torch and PyG\n')[1].split('\n## ')[0]
    rows = [line.split('|')[1:3] for line in section.splitlines() if line.startswith('| `')]
    return {
        name: re.findall('`(.+?)`', files)
        for names, files in rows
        for name in re.findall('`(.+?)`', names)
    }


def _private(name: str) -> bool:
    return bool(re.fullmatch('_[a-zA-Z]\\w*', name))


@functools.cache
def _of_torch() -> set[str]:
    """The private names that objects of torch and PyG have."""
    owners = [*OWNERS.values(), torch, torch._C]
    return {name for owner in owners for name in dir(owner) if _private(name)}


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
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            is_below = bool(re.fullmatch(r'torch[\w.]+', owner)) and any(
                map(_private, owner.split('.'))
            )
            if is_below or (_private(node.attr) and owner not in ('self', 'cls')):
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or '').startswith('pyg_sar'):
            is_below = any(map(_private, (node.module or '').split('.')))
            found |= {each.name for each in node.names if is_below or _private(each.name)}
        elif isinstance(node, ast.Constant) and node.value in _of_torch():
            found.add(node.value)
    return found


@pytest.mark.parametrize('name', _table())
def test_a_name_of_the_table_exists(name: str) -> None:
    owner = next((each for each in OWNERS if name.startswith(f'{each}.')), None)
    if owner is not None:
        found, attributes = OWNERS[owner], name.removeprefix(f'{owner}.').split('.')
    else:
        module, *attributes = name.split('.')
        found = importlib.import_module(module)
    for each in attributes:
        if not hasattr(found, each):
            importlib.import_module(f'{found.__name__}.{each}')
        found = getattr(found, each)


@pytest.mark.parametrize('name', _table())
def test_a_name_of_the_table_is_used_where_it_says(name: str) -> None:
    text = ''.join((PACKAGE / file).read_text('utf-8') for file in _table()[name])
    last = name.rpartition('.')[2]
    assert re.search(rf'\b{last}\b', text) or any(e in last and e in text for e in BUILT)


def test_every_private_name_that_is_used_is_in_the_table() -> None:
    known = {part for name in _table() for part in name.split('.')} | PYTHONS | _made_here()
    assert {path: new for path in SOURCES if (new := _uses(path) - known)} == {}


def test_check_refuses_a_cache_that_it_does_not_know() -> None:
    conv = GCNConv(1, 1, cached=True)
    check_caches(conv)
    conv._cache_of_edges = None
    with pytest.raises(ValueError, match='PyG'):
        check_caches(conv)


def test_attributes_of_edges_that_pyg_takes_for_those_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    graph = Data(x=torch.ones(2, 1), edge_index=edges, edge_attr=torch.ones(2, 1))
    pyg_sar.partition_graph(graph, 1, tmp_path / 'parts')
    assert pyg_sar.load_shard(tmp_path / 'parts').is_edge_attr('edge_attr')
    monkeypatch.setattr(Data, 'is_edge_attr', lambda data, name: False)
    with pytest.raises(RuntimeError, match='edges'):
        pyg_sar.load_shard(tmp_path / 'parts')
