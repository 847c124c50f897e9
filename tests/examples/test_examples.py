"""The examples run as their users run them: as programs, and under torchrun."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import started
import torch
from example_programs import EXAMPLES, example, run, torchrun
from graphs import two_communities
from hetero_graphs import hetero_graph
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.models import GraphSAGE
from torch_geometric.utils import to_undirected

import pyg_sar

EPOCHS = 3


def _graph() -> Data:
    """60 nodes, every fifth without a label and in no mask."""
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(60) % 3
    y[::5] = -1
    draw = torch.rand(60, generator=generator)
    return Data(
        x=torch.randn(60, 6, generator=generator),
        edge_index=torch.randint(0, 60, (2, 300), generator=generator),
        y=y,
        train_mask=(y >= 0) & (draw < 0.5),
        val_mask=(y >= 0) & (draw >= 0.5) & (draw < 0.7),
        test_mask=(y >= 0) & (draw >= 0.7),
    )


def _cut(root: Path) -> Path:
    pyg_sar.partition_graph(_graph(), 2, root, method=torch.arange(60) % 3 // 2)
    return root


def _hetero_graph() -> HeteroData:
    """With validation nodes; lonely nodes, which no relation reaches, stay with the others."""
    data = hetero_graph()
    data['paper'].val_mask = ~data['paper'].train_mask
    data['paper'].y[::7] = -1
    data['paper'].train_mask[::7] = False
    for store in data.node_stores:
        if 'x' in store:
            store.x = store.x.float()
    return data


@pytest.mark.slow
def test_train_full_batch_says_what_the_folder_lacks(tmp_path: Path) -> None:
    graph = _graph()
    del graph.train_mask
    pyg_sar.partition_graph(graph, 1, tmp_path / 'parts')
    done = started.run(['python', EXAMPLES / 'train_full_batch.py', tmp_path / 'parts'])
    assert done.returncode == 1
    assert 'got no train_mask' in done.stderr
    assert 'Traceback' not in done.stderr


def _lines(*command: object) -> list[tuple[str, list[float]]]:
    """Words and numbers of every line that the program printed."""
    lines = run(*command).splitlines()
    return [(_NUMBER.sub('#', line), [float(n) for n in _NUMBER.findall(line)]) for line in lines]


_NUMBER = re.compile(r'\d+\.\d+')


def _assert_same(got: list[tuple[str, list[float]]], want: list[tuple[str, list[float]]]) -> None:
    assert [line for line, _ in got] == [line for line, _ in want]
    for (_, ours), (_, theirs) in zip(got, want, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_train_sampled_is_the_same_on_one_and_two_processes_and_after_a_stop(tmp_path):
    parts, saved = _cut(tmp_path / 'parts'), tmp_path / 'saved'
    options = [EXAMPLES / 'train_sampled.py', parts, '--hidden', 8, '--epochs', 2]
    options += ['--fan-outs', -1, -1, '--batch-size', 8, '--exact-epochs', 1]
    saving = [*options, '--checkpoint', saved, '--every', 4]
    one, two = _lines(*options), _lines(*torchrun(2), *saving)
    assert [line.split()[:2] for line, _ in one] == [['epoch', str(i)] for i in (1, 2, 3)]
    _assert_same(two, one)
    steps = sorted(path.name for path in saved.iterdir())
    shutil.rmtree(saved / steps[-1])  # so that it goes on from the middle of an epoch
    _assert_same(_lines(*saving), one[-2:])


_EPOCHS = ['epoch'] * EPOCHS
_SHORT: dict[str, tuple[list[object], list[str]]] = {
    'appnp': (['--dropout', 0, '--hops', 4], _EPOCHS),
    'correct_and_smooth': (['--layers', 5], [*_EPOCHS, 'predicted', 'corrected', 'smoothed']),
    'graph_transformer': (['--hidden', 8], _EPOCHS),
    'hetero_rgcn': (['--target', 'paper', '--hidden', 8], _EPOCHS),
    'infomax': (['--hidden', 8], [*_EPOCHS, 'test']),
    'link_prediction': (['--hidden', 8], _EPOCHS),
    'self_supervised': (['--hidden', 8, '--method', 'grace'], [*_EPOCHS, 'test']),
    'sign': (['--hops', 2], _EPOCHS),
    'train_full_batch': (['--model', 'gat', '--hidden', 8], _EPOCHS),
}
"""Options, and the first word of every line."""


@pytest.mark.slow
@pytest.mark.parametrize('name', _SHORT)
def test_example_is_the_same_on_one_and_two_processes(name: str, tmp_path: Path) -> None:
    options, words = _SHORT[name]
    found = []
    for launcher in ([], torchrun(2)):
        root = tmp_path / f'parts{len(found)}'
        if name == 'hetero_rgcn':
            pyg_sar.partition_graph(_hetero_graph(), 2, root)
        else:
            _cut(root)
        links = torch.arange(60).view(2, 2, 15)
        torch.save({'val': links, 'test': links.flip(1)}, f'{root}.links.pt')
        command = [*launcher, EXAMPLES / f'{name}.py', root, '--epochs', EPOCHS, *options]
        if name == 'sign':
            command += ['--features', f'{root}.npy']
        found.append(_lines(*command))
    one, two = found
    assert [line.split()[0] for line, _ in one] == words
    if name not in ('infomax', 'self_supervised'):  # which draw anew in every epoch
        assert one[EPOCHS - 1][1][0] < one[0][1][0]
    if name == 'sign':  # on one process, from what two have saved
        two += _lines(*command[len(launcher) :])
        one *= 2
    _assert_same(two, one)


def _communities() -> Data:
    data = two_communities(40)
    data.x, data.y = data.x.float(), torch.arange(data.num_nodes) % 4
    return data


def _trained_model(data: Data) -> torch.nn.Module:
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, 2, 4, norm='batch_norm')
    model(data.x, data.edge_index)  # norms have statistics
    return model


def _program(*words: object) -> list[object]:
    return [EXAMPLES / 'inference.py', *words, '--hidden', 16, '--layers', 2]


def _infer(folder: Path, *words: object, ranks: int = 1) -> None:
    run(*(torchrun(ranks) if ranks > 1 else []), *_program(*words), folder=folder)


@pytest.mark.slow
def test_weights_of_plain_pyg_and_a_checkpoint(tmp_path: Path) -> None:
    data = _communities()
    model = _trained_model(data)
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts')
    torch.save(model.state_dict(), tmp_path / 'weights.pt')
    optimizer = torch.optim.Adam(model.parameters())
    pyg_sar.save_checkpoint(tmp_path / 'run', model, optimizer, epoch=3)
    _infer(tmp_path, 'parts', 'weights.pt', 'one.npy', '--probabilities')
    _infer(tmp_path, 'parts', 'run', 'two.npy', ranks=2)
    in_turns = ['-m', 'pyg_sar', 'run', '--in-turns', '--memory', '1MB', '--spill', '.']
    run(*in_turns, *_program('parts', 'weights.pt', 'three.npy'), folder=tmp_path)
    with torch.no_grad():
        want = model.eval()(data.x, data.edge_index).softmax(dim=-1)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / 'one.npy')), want)
    for name in ('two.npy', 'three.npy'):
        assert np.array_equal(np.load(tmp_path / name), want.argmax(dim=-1).numpy())


def _large_graph() -> Data:
    """8,000 nodes and 120,000 edges."""
    torch.manual_seed(0)
    y = torch.randint(8, (8000,))
    x = torch.nn.functional.one_hot(y, 32) + torch.randn(8000, 32)
    edge_index = to_undirected(torch.randint(8000, (2, 60_000)))
    return Data(x=x, edge_index=edge_index, y=y, train_mask=torch.rand(8000) < 0.6, num_classes=8)


@pytest.mark.slow
def test_losses_are_those_of_one_process(tmp_path: Path) -> None:
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(_large_graph(), 2, root)
    options = ['--memory', '1MB', '--spill', tmp_path, '--hidden', 64, '--epochs', 3]
    text = run(EXAMPLES / 'larger_than_memory.py', root, *options)
    args = argparse.Namespace(root=root, hidden=64, epochs=3)
    wanted = torch.tensor(example('larger_than_memory').train(args))
    found = torch.tensor([float(loss) for loss in re.findall(r'loss (\S+)', text)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-4)
    figures = re.search(r'([0-9.]+) MB written, ([0-9.]+) MB read', text)
    assert figures is not None
    assert min(map(float, figures.groups())) > 1
