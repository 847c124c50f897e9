"""``python -m pyg_sar.predict``: what plain PyG gives, and one line where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hetero_graphs import hetero_graph
from small_graphs import small_graph
from torch_geometric import seed_everything

import pyg_sar
from pyg_sar.commands.users_model import made_model
from pyg_sar.in_turns import run as in_turns_run
from pyg_sar.monitor import hook
from pyg_sar.predict import passes, predict
from pyg_sar.predict.__main__ import main

MODELS = """
import torch
from torch_geometric.nn import GAT, GraphSAGE, HeteroConv, SAGEConv

def make_sage():
    return GraphSAGE(WIDTH, 8, 3, 4, norm='batch_norm', jk='cat').double()

def make_gat():
    return GAT(WIDTH, 8, 2, 4, heads=2, dropout=0.5).double()

class Hetero(torch.nn.Module):
    def __init__(self):
        super().__init__()
        cites, writes = ('paper', 'cites', 'paper'), ('author', 'writes', 'paper')
        knows = ('author', 'knows', 'author')
        convs = {cites: SAGEConv(6, 5), writes: SAGEConv((4, 6), 5), knows: SAGEConv(4, 5)}
        self.conv = HeteroConv(convs).double()

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)

model = Hetero()
number = 3

def of_papers(model, data):
    return model(data.x_dict, data.edge_index_dict)['paper'].relu()

def doubled(model, data):
    return 2 * model(data.x, data.edge_index)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the graph, models and weights of one run."""
    seed_everything(0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = small_graph()
    data.x = data.x.double()
    torch.save(data, 'data.pt')
    torch.save(hetero_graph(), 'hetero.pt')
    file = f'models_{tmp_path.name}.py'
    Path(file).write_text(MODELS.replace('WIDTH', str(data.num_features)))
    return tmp_path


def _plain(folder: Path, name: str) -> torch.nn.Module:
    """The model with trained-looking running statistics; its weights are saved."""
    model = made_model(f'models_{folder.name}.py:{name}')
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    torch.save(model.state_dict(), 'weights.pt')
    return model.eval()


def _run(folder: Path, name: str, *arguments: str) -> int:
    return main([f'models_{folder.name}.py:{name}', 'weights.pt', *arguments, '--memory', '1MB'])


@pytest.mark.parametrize('name', ['make_sage', 'make_gat'])
@pytest.mark.parametrize('num_parts', [1, 3])
def test_equal_to_plain(folder: Path, name: str, num_parts: int) -> None:
    data, model = torch.load('data.pt', weights_only=False), _plain(folder, name)
    assert _run(folder, name, 'data.pt', 'out.npy', '--num-parts', str(num_parts)) == 0
    with torch.no_grad():
        wanted = model(data.x, data.edge_index).numpy()
    np.testing.assert_allclose(np.load('out.npy'), wanted, rtol=1e-12, atol=1e-12)


def test_progress_is_of_layers_and_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[list[Any]] = []

    @contextmanager
    def shown(name: str, total: int, *, quiet: bool) -> Iterator[Any]:
        bars.append([name, total, quiet, 0])
        yield SimpleNamespace(update=lambda: bars[-1].__setitem__(3, bars[-1][3] + 1))

    monkeypatch.setattr(passes, 'progress_bar', shown)
    model = _plain(folder, 'make_sage')
    for progress in (True, False):
        predict(model, 'data.pt', 'out.npy', memory='1GB', num_parts=2, progress=progress)
    assert bars == [['predicting', 6, not progress, 6] for progress in (True, False)]
    assert hook.watchers == ()


def test_weights_of_a_checkpoint(folder: Path) -> None:
    data, model = torch.load('data.pt', weights_only=False), _plain(folder, 'make_sage')
    optimizer = torch.optim.Adam(model.parameters())
    pyg_sar.save_checkpoint('run', model, optimizer, epoch=1)
    (file,) = Path('run').glob('*/model.pt')
    with torch.no_grad():
        wanted = model(data.x, data.edge_index).numpy()
    made = f'models_{folder.name}.py:make_sage'
    for weights in ('run', str(file)):
        arguments = [made, weights, 'data.pt', 'out.npy', '--memory', '1MB', '--num-parts', '2']
        assert main(arguments) == 0
        np.testing.assert_allclose(np.load('out.npy'), wanted, rtol=1e-12, atol=1e-12)
        Path('out.npy').unlink()


def test_types_and_forward(folder: Path) -> None:
    data, model = torch.load('hetero.pt', weights_only=False), _plain(folder, 'model')
    with torch.no_grad():
        found = model(data.x_dict, data.edge_index_dict)
    assert _run(folder, 'model', 'hetero.pt', 'out.npy', '--num-parts', '2') == 0
    for key, rows in found.items():
        got = np.load(f'out-{key}.npy')
        np.testing.assert_allclose(got, rows.numpy(), rtol=1e-12, atol=1e-12)
    wanted = found['paper'].numpy()
    forward = f'models_{folder.name}.py:of_papers'
    options = ['--num-parts', '2', '--forward', forward, '--nodes', 'paper']
    assert _run(folder, 'model', 'hetero.pt', 'relu.npy', *options) == 0
    np.testing.assert_allclose(np.load('relu.npy'), wanted.clip(0), rtol=1e-12, atol=1e-12)


def test_the_cut_is_kept_until_the_data_changes(folder: Path) -> None:
    _plain(folder, 'make_sage')
    arguments = 'make_sage', 'data.pt', 'out.npy', '--num-parts', '2'
    assert _run(folder, *arguments) == 0
    (cut,) = folder.glob('data.pt.parts-2-*')
    made = (cut / 'META.json').stat().st_mtime_ns
    assert _run(folder, *arguments) == 0
    assert (cut / 'META.json').stat().st_mtime_ns == made
    first = np.load('out.npy')
    data = torch.load('data.pt', weights_only=False)
    data.x += 1
    torch.save(data, 'data.pt')
    assert _run(folder, *arguments) == 0
    assert len([*folder.glob('data.pt.parts-2-*')]) == 2
    assert not np.allclose(first, np.load('out.npy'))


MODELS_OF_MEMORY = """
import torch
from torch_geometric.nn import GAT, GCN, GraphSAGE, TransformerConv

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = TransformerConv(6, 8, heads=2), TransformerConv(16, 4)

    def forward(self, x, edge_index):
        return self.last(self.conv(x, edge_index).relu(), edge_index)

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCN(6, 8, 2, 4)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) + torch.ones(300, 300).double().mean()

class Silent(Whole):
    def forward(self, x, edge_index):
        try:
            torch.ones(300, 300)
        except ValueError:
            pass
        return self.conv(x, edge_index)

sage = GraphSAGE(6, 16, 3, 4, norm='batch_norm', jk='cat').double()
gat = GAT(6, 16, 3, 4, heads=4).double()
attention, whole, silent = Attention().double(), Whole().double(), Silent().double()
"""


@pytest.fixture
def in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph of which all tensors but the smallest count."""
    torch.save(small_graph(300, 2000), 'data.pt')
    Path(f'models_{folder.name}.py').write_text(MODELS_OF_MEMORY)
    play = partial(in_turns_run.play, least=1024)
    monkeypatch.setattr(import_module('pyg_sar.predict.predict'), 'play', play)
    return folder


def _parts(folder: Path) -> list[int]:
    return [int(path.name.split('-')[1]) for path in folder.glob('data.pt.parts-*')]


@pytest.mark.parametrize(('name', 'first'), [('sage', 1), ('gat', 0.1), ('attention', 0.1)])
def test_large_tensors_stay_within_the_memory(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: float
) -> None:
    tensors, edges = 6 * first, 48 * first
    monkeypatch.setattr('pyg_sar.predict.cut._TENSORS_OF_A_LAYER', tensors)
    monkeypatch.setattr('pyg_sar.predict.cut._EDGE_BYTES', edges)
    data, model = torch.load('data.pt', weights_only=False), _plain(in_memory, name)
    memory = 100_000
    found = predict(model, 'data.pt', 'out.npy', memory=memory)
    assert 0 < found.peak <= memory
    assert found.evictions > 0
    with torch.no_grad():
        wanted = model(data.x, data.edge_index).numpy()
    np.testing.assert_allclose(np.load('out.npy'), wanted, rtol=1e-12, atol=1e-12)
    (num_parts,) = _parts(in_memory)
    again = predict(model, 'data.pt', 'out.npy', memory=memory)
    assert _parts(in_memory) == [num_parts]
    assert again.peak <= memory


@pytest.mark.parametrize('name', ['whole', 'silent', 'gat'])
def test_what_exceeds_the_memory_is_an_error(in_memory: Path, name: str) -> None:
    if name != 'gat':
        torch.save(small_graph(12, 40), 'data.pt')  # soon in as many parts as it has nodes
    model = _plain(in_memory, name)
    given = {} if name != 'gat' else {'num_parts': 2}
    with pytest.raises(ValueError, match="expected 'memory' for the turn of one rank"):
        predict(model, 'data.pt', 'out.npy', memory=10_000, **given)
    assert name == 'silent' or not Path('out.npy').exists()
    assert _parts(in_memory) == ([] if name != 'gat' else [2])
    if name == 'gat':  # a folder is one of so many parts
        (root,) = in_memory.glob('data.pt.parts-*')
        with pytest.raises(ValueError, match='with more parts a turn needs less'):
            predict(model, root, 'out.npy', memory=10_000)


def test_parts_follow_from_the_memory(folder: Path) -> None:
    _plain(folder, 'make_sage')
    assert _run(folder, 'make_sage', 'data.pt', 'out.npy') == 0
    (few,) = folder.glob('data.pt.parts-*')
    made = f'models_{folder.name}.py:make_sage'
    assert main([made, 'weights.pt', 'data.pt', 'out.npy', '--memory', '20KB']) == 0
    counts = {int(path.name.split('-')[1]) for path in folder.glob('data.pt.parts-*')}
    assert max(counts) > int(few.name.split('-')[1])
    methods = [
        json.loads((root / 'META.json').read_text())['pyg_sar']['partition']['method']
        for root in folder.glob('data.pt.parts-*')
    ]
    assert sorted(methods) == ['fennel', 'metis']  # which needs more than 20 KB


@pytest.mark.parametrize(
    ('name', 'changes', 'words'),
    [
        ('none', {}, "expected 'none' in"),
        ('number', {}, 'expected a model, or what makes one'),
        ('make_gat', {}, 'do not fit the model'),
        ('make_sage', {0: 'none.pt'}, 'no such file: none.pt'),
        ('make_sage', {0: 'text.pt'}, 'expected a state_dict in text.pt'),
        ('make_sage', {1: 'none.pt'}, 'no such file: none.pt'),
        ('make_sage', {2: 'none/out.npy'}, 'no such folder: none'),
        ('make_sage', {2: 'out.txt'}, 'ends in .npy'),
        ('make_sage', {2: 'folder.npy'}, 'cannot write folder.npy'),
    ],
)
def test_errors_are_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    changes: dict[int, str],
    words: str,
) -> None:
    _plain(folder, 'make_sage')
    Path('text.pt').write_text('no weights')
    Path('folder.npy').mkdir()
    paths = ['weights.pt', 'data.pt', 'out.npy']
    for i, path in changes.items():
        paths[i] = path
    assert main([f'models_{folder.name}.py:{name}', *paths, '--memory', '1MB']) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert error.count('\n') == 1
    assert words in error
    assert not [*folder.glob('data.pt.parts-*')]


def test_no_such_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _plain(folder, 'make_sage')
    assert main(['none.py:make', 'weights.pt', 'data.pt', 'out.npy', '--memory', '1MB']) == 2
    assert capsys.readouterr().err == 'error: no such file: none.py\n'
