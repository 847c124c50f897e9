"""Messages say what is wrong and what to do in 200 characters, the guilty rank first."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import mistakes
import pytest
import torch
from mistakes import IN_STEP, LAUNCHED, NUM_RANKS, RIGHT, Mistake, Net, net
from ranks import run_once
from small_graphs import attempt, cut, small_graph
from started import TORCHRUN, run

import pyg_sar
from pyg_sar.rows import select

FIRST = 200  # characters of a message that are read


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut(small_graph(), NUM_RANKS, tmp_path_factory.mktemp('mistakes') / 'parts')


def _check(mistake: Mistake, message: str) -> None:
    read = message[:FIRST]
    assert mistake.what in read, (mistake.do, message)
    assert mistake.remedy in read, (mistake.do, message)
    assert '.cc' not in message  # a line of gloo's sources
    if mistake.guilty is not None:
        named = re.findall(r'rank (\d)', message)
        assert int(named[0]) == mistake.guilty, message


def _messages(root: str) -> list[str]:
    """What this rank is told at each mistake of IN_STEP; the next one begins anew."""
    rank = pyg_sar.init().rank
    return [
        attempt(mistake.make, pyg_sar.load_shard(root), rank).partition(': ')[2]
        for mistake in IN_STEP
    ]


@pytest.fixture(scope='module')
def found(root: Path) -> list[tuple[Any, ...]]:
    """The answers of every rank; to start ranks takes longest."""
    return run_once(_on_rank, NUM_RANKS, str(root), timeout=300)


def _on_rank(root: str) -> tuple[Any, ...]:
    return _warned(root), _losses(root), _messages(root)


def test_in_step(found: list[tuple[Any, ...]]) -> None:
    for _, _, messages in found:
        for mistake, message in zip(IN_STEP, messages, strict=True):
            _check(mistake, message)


@pytest.mark.slow
@pytest.mark.parametrize('name', LAUNCHED)
def test_on_a_terminal(name: str, root: Path, tmp_path: Path) -> None:
    mistake = LAUNCHED[name]
    if name == '4 parts on 3 ranks':
        root = cut(small_graph(), 4, tmp_path / 'parts')
    ranks = ('--standalone', '--nproc-per-node', NUM_RANKS)
    done = run([*TORCHRUN, *ranks, mistakes.__file__, name, root])
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
    if name.startswith('has_a_bug'):
        assert told[0][0] == '1'
        cause = done.stderr[done.stderr.index('Root Cause') :]
        assert re.search(r'rank +: 1 ', cause)


def _warned(root: str) -> list[tuple[str, int, str]]:
    data = pyg_sar.load_shard(root)
    few = mock.patch.object(select, '_MANY_READS', 100)
    with few, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        mistakes.reads_one_by_one(data)
    told = [(Path(each.filename).name, each.lineno, str(each.message)) for each in caught]
    return [each for each in told if 'one by one' in each[2]]


def test_rows_that_are_read_one_by_one(found: list[tuple[Any, ...]]) -> None:
    line = mistakes.reads_one_by_one.__code__.co_firstlineno + 3
    for told, _, _ in found:
        ((file, at, text),) = told
        assert (file, at) == ('mistakes.py', line)
        assert 'pyg_sar.gather(x) once before the loop' in text[:FIRST]


def _losses(root: str) -> list[float]:
    return [loss(pyg_sar.load_shard(root), net()).item() for loss in RIGHT.values()]


def test_what_is_no_mistake(found: list[tuple[Any, ...]]) -> None:
    data, want = small_graph(), []
    for loss in RIGHT.values():
        torch.manual_seed(0)
        want.append(loss(data, Net().double()).item())
    for _, got, _ in found:
        assert got == pytest.approx(want, rel=1e-12)
