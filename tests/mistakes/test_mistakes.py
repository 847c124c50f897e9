"""Messages say what is wrong and what to do in 200 characters, the guilty rank first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import mistakes
import pytest
import torch
from mistakes import IN_STEP, LAUNCHED, NUM_RANKS, RIGHT, Mistake, Net, net
from ranks import run_once
from small_graphs import attempt, cut, small_graph

import pyg_sar
from pyg_sar.__main__ import main

FIRST = 200  # characters of a message that are read


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut(small_graph(), NUM_RANKS, tmp_path_factory.mktemp('mistakes') / 'parts')


def _check(mistake: Mistake, message: str) -> None:
    read = message[:FIRST]
    assert mistake.what in read, message
    assert mistake.remedy in read, message
    assert '.cc' not in message  # a line of gloo's sources
    if mistake.guilty is not None:
        named = re.findall(r'rank (\d)', message)
        assert int(named[0]) == mistake.guilty, message


def _messages(root: str) -> dict[str, str]:
    """What this rank is told at each mistake of IN_STEP; the next one begins anew."""
    rank = pyg_sar.init().rank
    found = {}
    for name, mistake in IN_STEP.items():
        data = pyg_sar.load_shard(root)
        found[name] = attempt(mistake.do, data, rank).partition(': ')[2]
    return found


def test_on_ranks(root: Path) -> None:
    for of_rank in run_once(_messages, NUM_RANKS, str(root)):
        for name, mistake in IN_STEP.items():
            _check(mistake, of_rank[name])


@pytest.mark.slow
@pytest.mark.parametrize('name', LAUNCHED)
def test_on_a_terminal(name: str, root: Path, tmp_path: Path) -> None:
    mistake = LAUNCHED[name]
    if name == '4 parts on 3 ranks':
        root = cut(small_graph(), 4, tmp_path / 'parts')
    torchrun = (sys.executable, '-m', 'torch.distributed.run', '--standalone')
    command = (*torchrun, '--nproc-per-node', str(NUM_RANKS), mistakes.__file__, name, str(root))
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    of_ranks = [re.fullmatch(r'(?:\[rank(\d)\]: )?(\w+Error): (.*)', line) for line in lines]
    told = [(each[1], each[2], each[3]) for each in of_ranks if each]
    messages = [text for _, kind, text in told if kind != 'KeyError']
    assert messages, done.stderr
    for text in messages:
        _check(mistake, text)
    if mistake.guilty is not None:
        # A rank that is well says one line, after the traceback of the one that failed.
        traced = {
            line.split(']')[0]
            for line in lines
            if line.endswith(']: Traceback (most recent call last):')
        }
        assert traced <= {f'[rank{mistake.guilty}'}, done.stderr
    if name == 'a bug on rank 1':
        assert told[0][0] == '1'
        cause = done.stderr[done.stderr.index('Root Cause') :]
        assert re.search(r'rank +: 1 ', cause)


FAKE = 'torch_geometric.datasets.FakeDataset(num_graphs=1)'

COMMANDS = {
    'run --memory 64': (['run', '--in-turns', '--memory', '64', 'train.py'], '64 bytes? say 64GB'),
    'partition nofile.pt': (
        ['partition', 'nofile.pt', 'out', '--num-parts', '2'],
        "'nofile.pt', no such file",
    ),
    'partition --transform GcnNorm': (
        ['partition', FAKE, 'out', '--num-parts', '2', '--transform', 'GcnNorm'],
        'do you mean GCNNorm?',
    ),
    'info of a folder of others': (
        ['info', '.'],
        'got one without META.json: it was not written by pyg_sar.partition, or only in part): '
        'python -m pyg_sar.partition makes one',
    ),
    'info --plot x': (['info', 'PARTS', '--plot', 'x'], 'ends in .png'),
}


@pytest.mark.parametrize('name', COMMANDS)
def test_of_a_command(
    name: str,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, told = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    try:
        code = main([str(root) if word == 'PARTS' else word for word in words])
    except SystemExit as end:
        code = end.code
    err = capsys.readouterr().err
    assert code == 2
    assert told in err[:FIRST]


def _warned(root: str) -> list[tuple[str, int, str]]:
    data = pyg_sar.load_shard(root)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        mistakes.reads_one_by_one(data)
    told = [(Path(each.filename).name, each.lineno, str(each.message)) for each in caught]
    return [each for each in told if 'one by one' in each[2]]


def test_rows_that_are_read_one_by_one(root: Path) -> None:
    line = mistakes.reads_one_by_one.__code__.co_firstlineno + 3
    for told in run_once(_warned, NUM_RANKS, str(root)):
        ((file, at, text),) = told
        assert (file, at) == ('mistakes.py', line)
        assert 'pyg_sar.gather(x) once before the loop' in text[:FIRST]


def _losses(root: str) -> list[float]:
    return [loss(pyg_sar.load_shard(root), net()).item() for loss in RIGHT.values()]


def test_what_is_no_mistake(root: Path) -> None:
    data, want = small_graph(), []
    for loss in RIGHT.values():
        torch.manual_seed(0)
        want.append(loss(data, Net().double()).item())
    for got in run_once(_losses, NUM_RANKS, str(root)):
        assert got == pytest.approx(want, rel=1e-12)
