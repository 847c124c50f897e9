"""Private names of torch, PyG and pymetis: all exist and are used, and one that is gone is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import parts_of
from torch.optim.lr_scheduler import ChainedScheduler, StepLR
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

import pyg_sar
from pyg_sar.utils.installed import find, find_or_none

SOURCES = [*Path(pyg_sar.__file__).parent.rglob('*.py')]
PAGE = Path(__file__).with_name('private_names.md').read_text(encoding='utf-8')
ROWS = re.findall(r'^\| (`torch.*?) \|', PAGE.split('## Private names')[1].split('\n## ')[0], re.M)
NAMES = [name.strip('`') for row in ROWS for name in row.split(', ')]
TEXT = ''.join(path.read_text(encoding='utf-8') for path in SOURCES)
STEPS = StepLR(torch.optim.SGD([torch.ones(1)]), 1)
DATA = Data(x=torch.ones(1, 1))
OF_OBJECTS = {
    'torch_geometric.data.Data._cached_attr': lambda: DATA.stores[0],
    'torch.nn.RNNBase._flat_weights': lambda: torch.nn.GRU(1, 1),
    'torch.optim.lr_scheduler.ChainedScheduler._schedulers': lambda: ChainedScheduler([STEPS]),
}
"""What objects get when they are used, or made with arguments."""

ENDINGS = ('_forward_hooks', '_forward_pre_hooks', '_foreach_', '_fused_', '_global_')
"""Parts that are looked for where the sources put a name together."""


@pytest.mark.parametrize('name', NAMES)
def test_a_name_exists_and_is_used(name: str) -> None:
    last = name.removesuffix('.default').rpartition('.')[2]
    if name in OF_OBJECTS:
        owner = OF_OBJECTS[name]()
        DATA.is_node_attr('x')
        assert hasattr(owner, last)
    else:
        cls, is_object, attribute = name.partition('().')
        assert not is_object or hasattr(find(cls)(), attribute)
        assert is_object or find(name) is not None
    assert re.search(rf'\b{last}\b', TEXT) or any(e in last and e in TEXT for e in ENDINGS)


LISTED = {word for name in NAMES for word in name.split('.')}
OWNERS = torch.Tensor, torch.UntypedStorage, torch.nn.Module(), SimpleConv()
OF_OWNERS = {name for owner in OWNERS for name in dir(owner)}


def _others_names(path: Path) -> Iterator[str]:
    """The names of torch, PyG and pymetis in a file, as far as imports or :data:`OWNERS` tell."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding='utf-8')))]
    of_others = re.compile(r'(torch|torch_geometric|pymetis)\b')
    roots = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and of_others.match(node.module or ''):
            roots |= {each.asname or each.name for each in node.names}
            yield from (f'{node.module}.{each.name}' for each in node.names)
        elif isinstance(node, ast.Import):
            names = [each for each in node.names if of_others.match(each.name)]
            roots |= {each.asname or each.name.partition('.')[0] for each in names}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            is_others = re.fullmatch(r'[\w.]+', name) and name.partition('.')[0] in roots
            if is_others or node.attr in OF_OWNERS:
                yield name if is_others else node.attr


def test_private_names_are_listed() -> None:
    for path in SOURCES:
        names = '\n'.join(_others_names(path))
        assert {*re.findall(r'\b_[a-zA-Z]\w*', names)} <= LISTED, path


def test_a_name_that_is_gone_is_told() -> None:
    sentence = r"pyg_sar needs 'torch._C._nothing', which torch [\w.+]+ does not have"
    with pytest.raises(ImportError, match=sentence):
        find('torch._C._nothing')
    assert find_or_none('torch._C._nothing') is None


def test_attributes_of_edges_that_pyg_takes_for_those_of_nodes(monkeypatch: Any) -> None:
    root = parts_of(1)
    assert pyg_sar.load_shard(root).is_edge_attr('edge_attr')
    monkeypatch.setattr(Data, 'is_edge_attr', lambda data, name: False)
    with pytest.raises(ImportError, match='_cached_attr'):
        pyg_sar.load_shard(root)
