"""``python -m pyg_sar.predict``: what plain PyG gives, and one line where something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from few import few
from hetero_graphs import hetero_graph
from small_graphs import small_graph
from torch_geometric import seed_everything

import pyg_sar
from pyg_sar.commands.users_model import load_named
from pyg_sar.in_turns import Figures
from pyg_sar.in_turns import run as in_turns_run
from pyg_sar.predict import __main__ as command
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
    found = load_named(f'models_{folder.name}.py:{name}')
    model: torch.nn.Module = found if isinstance(found, torch.nn.Module) else found()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    torch.save(model.state_dict(), 'weights.pt')
    return model.eval()


def _run(folder: Path, name: str, parts: str, *options: str, **changes: str) -> int:
    """The command line; by `changes` others than these weights, this file and this memory."""
    paths = {'weights': 'weights.pt', 'out': 'out.npy', 'memory': '1MB'} | changes
    words = [parts, f'models_{folder.name}.py:{name}', paths['weights'], paths['out'], *options]
    return main([*words, '--memory', paths['memory']])


@pytest.mark.parametrize('name', ['make_sage', 'make_gat'])
@pytest.mark.parametrize('num_parts', [1, 3])
def test_equal_to_plain(folder: Path, name: str, num_parts: int) -> None:
    data, model = torch.load('data.pt', weights_only=False), _plain(folder, name)
    pyg_sar.partition_graph(data, num_parts, 'parts')
    assert _run(folder, name, 'parts') == 0
    with torch.no_grad():
        wanted = model(data.x, data.edge_index).numpy()
    np.testing.assert_allclose(np.load('out.npy'), wanted, rtol=1e-12, atol=1e-12)


def test_weights_of_a_checkpoint(folder: Path) -> None:
    data, model = torch.load('data.pt', weights_only=False), _plain(folder, 'make_sage')
    optimizer = torch.optim.Adam(model.parameters())
    pyg_sar.save_checkpoint('run', model, optimizer, epoch=1)
    (file,) = Path('run').glob('*/model.pt')
    with torch.no_grad():
        wanted = model(data.x, data.edge_index).numpy()
    pyg_sar.partition_graph(data, 2, 'parts')
    for weights in ('run', str(file)):
        assert _run(folder, 'make_sage', 'parts', weights=weights) == 0
        np.testing.assert_allclose(np.load('out.npy'), wanted, rtol=1e-12, atol=1e-12)
        Path('out.npy').unlink()


def test_types_and_forward(folder: Path) -> None:
    data, model = torch.load('hetero.pt', weights_only=False), _plain(folder, 'model')
    with torch.no_grad():
        found = model(data.x_dict, data.edge_index_dict)
    pyg_sar.partition_graph(data, 2, 'parts')
    assert _run(folder, 'model', 'parts') == 0
    for key, rows in found.items():
        got = np.load(f'out-{key}.npy')
        np.testing.assert_allclose(got, rows.numpy(), rtol=1e-12, atol=1e-12)
    wanted = found['paper'].numpy()
    forward = f'models_{folder.name}.py:of_papers'
    options = ['--forward', forward, '--nodes', 'paper']
    assert _run(folder, 'model', 'parts', *options, out='relu.npy') == 0
    np.testing.assert_allclose(np.load('relu.npy'), wanted.clip(0), rtol=1e-12, atol=1e-12)


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
def in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figures]:
    """A graph of which all tensors but the smallest count; gets the figures of every run."""
    torch.save(small_graph(300, 2000), 'data.pt')
    Path(f'models_{folder.name}.py').write_text(MODELS_OF_MEMORY)
    figures: list[Figures] = []

    def play(*args: Any, **kwargs: Any) -> Any:
        in_turns = in_turns_run.play(*args, least=1024, **kwargs)
        figures.append(in_turns.figures)
        return in_turns

    monkeypatch.setattr(command, 'play', play)
    return figures


@pytest.mark.parametrize(('name', 'num_parts'), few([('sage', 12), ('gat', 12), ('attention', 12)]))
def test_large_tensors_stay_within_the_memory(
    in_memory: list[Figures], folder: Path, name: str, num_parts: int
) -> None:
    data, model = torch.load('data.pt', weights_only=False), _plain(folder, name)
    pyg_sar.partition_graph(data, num_parts, 'parts')
    assert _run(folder, name, 'parts', memory='100KB') == 0
    (figures,) = in_memory
    assert 0 < figures.peak <= 100_000
    assert figures.evictions > 0
    with torch.no_grad():
        wanted = model(data.x, data.edge_index).numpy()
    np.testing.assert_allclose(np.load('out.npy'), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures('in_memory')
@pytest.mark.parametrize('name', ['whole', 'silent', 'gat'])
def test_what_exceeds_the_memory_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    _plain(folder, name)
    pyg_sar.partition_graph(small_graph(300, 2000), 2, 'parts')
    assert _run(folder, name, 'parts', memory='10KB') == 2
    error = capsys.readouterr().err
    assert "expected 'memory' for the turn of one rank" in error
    assert 'with more parts a turn needs less' in error
    assert name == 'silent' or not Path('out.npy').exists()


@pytest.mark.parametrize(
    ('name', 'changes', 'words'),
    [
        ('none', {}, "expected 'none' in"),
        ('number', {}, 'expected a model, or what makes one'),
        ('make_gat', {}, 'do not fit the model'),
        ('make_sage', {'weights': 'none.pt'}, 'no such file: none.pt'),
        ('make_sage', {'weights': 'text.pt'}, 'expected a state_dict in text.pt'),
        ('make_sage', {'parts': 'none'}, 'got no folder'),
        ('make_sage', {'parts': 'data.pt'}, 'python -m pyg_sar.partition data.pt parts'),
        ('make_sage', {'out': 'none/out.npy'}, 'no such folder: none'),
        ('make_sage', {'out': 'out.txt'}, 'ends in .npy'),
        ('make_sage', {'out': 'folder.npy'}, 'cannot write folder.npy'),
    ],
)
def test_errors_are_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    changes: dict[str, str],
    words: str,
) -> None:
    _plain(folder, 'make_sage')
    Path('text.pt').write_text('no weights')
    Path('folder.npy').mkdir()
    pyg_sar.partition_graph(small_graph(), 2, 'parts')
    assert _run(folder, name, **({'parts': 'parts'} | changes)) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    assert error.count('\n') == 1
    assert words in error


def test_no_such_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _plain(folder, 'make_sage')
    pyg_sar.partition_graph(small_graph(), 2, 'parts')
    assert main(['parts', 'none.py:make', 'weights.pt', 'out.npy', '--memory', '1MB']) == 2
    assert capsys.readouterr().err == 'error: no such file: none.py\n'
