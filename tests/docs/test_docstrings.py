"""Every public name says what a user must know, and its example runs as it stands."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import two_communities
from pages import ROOT
from torch_geometric.nn import GATConv, GraphSAGE

import pyg_sar
import pyg_sar.partition


def _public() -> dict[str, Any]:
    """What is public, by name."""
    found = {f'pyg_sar.{name}': getattr(pyg_sar, name) for name in pyg_sar.__all__}
    for name, value in vars(pyg_sar.partition).items():
        if getattr(value, '__module__', '').startswith('pyg_sar') and not name.startswith('_'):
            found[f'pyg_sar.partition.{name}'] = value
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


PUBLIC = _public()
PROGRAMS = {  # a plain record has no errors of its own and is made by a function
    name: value
    for name, value in PUBLIC.items()
    if not dataclasses.is_dataclass(value)
    and not (isinstance(value, type) and issubclass(value, Exception))
}


def _annotations(value: Any) -> str:
    of = value.__init__ if isinstance(value, type) else value
    return ' '.join(str(each) for each in inspect.get_annotations(of).values())


def _examples(text: str) -> list[str]:
    """The literal blocks of a docstring, and its lines with ``>>>``."""
    typed = re.findall(r'^ *(?:>>>|\.\.\.) ?(.*)$', text, re.MULTILINE)
    blocks = re.findall(r'::\n\n((?:(?: +[^\n]*)?\n)+)', f'{text}\n', re.MULTILINE)
    return [textwrap.dedent(block) for block in [*blocks, '\n'.join(typed)] if block.strip()]


@pytest.mark.parametrize('name', PUBLIC)
def test_a_public_name_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ''
    assert text.split('\n')[0].strip().endswith('.'), 'one sentence first'


@pytest.mark.parametrize('name', PROGRAMS)
def test_what_a_docstring_tells(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ''
    if inspect.signature(PUBLIC[name]).parameters:
        assert 'Raises:' in text
    assert re.search('[Cc]ollective', text), 'whether all ranks must call it'
    assert _examples(text), 'an example'
    if 'Tensor' in _annotations(PUBLIC[name]):
        assert re.search(r'``\[.*?\]``', text, re.DOTALL), 'shapes'


@pytest.mark.slow
@pytest.mark.parametrize('name', PROGRAMS)
def test_the_example_of_a_docstring(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for example in _examples(inspect.getdoc(PUBLIC[name]) or ''):
        exec(compile(example, name, 'exec'), _of_a_program(tmp_path, name))


def _of_a_program(folder: Path, name: str) -> dict[str, Any]:
    """What the examples take as given."""
    graph = two_communities()
    graph.x, graph.val_mask, graph.pos = graph.x.float(), ~graph.train_mask, graph.x[:, :3]
    graph.edge_weight, graph.edge_attr = graph.edge_weight.float(), graph.edge_attr.float()
    pyg_sar.partition_graph(graph, 4, folder / 'parts', force=True)
    torch.save(graph, folder / 'graph.pt')
    data = pyg_sar.load_shard(folder / 'parts')
    model = pyg_sar.DistributedDataParallel(GraphSAGE(8, 8, 2, 3))
    optimizer = torch.optim.Adam(model.parameters())
    out = model(data.x, data.edge_index)
    losses = F.cross_entropy(out, data.y, reduction='none')

    def train(*_: Any) -> None:
        model(data.x, data.edge_index).sum().backward()

    of_torch = {'F': F, 'torch': torch, 'loss': torch.tensor(1.0)}
    of_pyg = {'GATConv': GATConv, 'GraphSAGE': GraphSAGE, 'pyg_sar': pyg_sar}
    of_data = {'x': data.x, 'edge_index': data.edge_index, 'num_train': int(data.train_mask.sum())}
    of_training = {'optimizer': optimizer, 'losses': losses, 'train': train, 'num_ranks': 1}
    made = {'data': data, 'graph': graph, 'model': model, 'out': out}
    return {**of_torch, **of_pyg, **of_data, **of_training, **made}


def test_the_reference_has_every_public_name() -> None:
    pages = ''.join(page.read_text() for page in (ROOT / 'docs' / 'api').glob('*.md'))
    documented = re.findall(r'^\.\. auto\w+:: (\S+)$', pages, re.MULTILINE)
    same = {PUBLIC[name] for name in documented if name in PUBLIC}  # under another name as well
    assert {name for name, value in PUBLIC.items() if value not in same} == set()
    assert len(documented) == len(set(documented))


def test_examples_of_docstrings_are_found() -> None:
    text = 'First.\n\nAs in::\n\n    a = 1\n\n    b = 2\n\nMore.\n\n>>> c = 3\n... d\n'
    assert _examples(text) == ['a = 1\n\nb = 2\n\n', 'c = 3\nd']
    assert ast.parse(_examples(text)[0])
