"""Wherever a process is killed while it writes: what is there is the old or the new, and whole."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.ground import durable
from pyg_sar.partitioner.write.atomic_folder import replace_folder

_OF_SYSTEM = {
    'open',
    'write',
    'flush',
    'close',
    'fsync',
    'rename',
    'replace',
    'mkdir',
    'unlink',
    'rmdir',
}
"""Functions of ``os`` and of files that change what is on the disk."""


def _dies(call: Callable[[], Any], number: int) -> bool:
    """Runs a call in a process that dies at a call of the system; whether it came to that one."""
    child = os.fork()
    if child == 0:
        left = number

        def count(frame: object, event: str, function: Any) -> None:
            nonlocal left
            if event == 'c_call' and function.__name__ in _OF_SYSTEM:
                of_files = isinstance(getattr(function, '__self__', None), io.IOBase)
                if of_files or function.__module__ in ('posix', '_io', 'io'):
                    left -= 1
                    if left == 0:
                        os._exit(9)  # as SIGKILL: what is buffered is lost

        try:
            sys.setprofile(count)
            call()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


class _File:
    """The rows of a NodeEmbedding or any others, as a file."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / 'rows.npy'
        self.data = Data(n_id=torch.arange(5), num_nodes_total=5)

    def write(self, value: int) -> None:
        pyg_sar.save_rows(self.root, torch.full((5, 2), float(value)), self.data)

    def read(self) -> int:
        rows = np.load(self.root)
        assert rows.shape == (5, 2)
        return int(rows[0, 0]) if (rows == rows[0, 0]).all() else -1


class _Checkpoint:
    """A model with a table of nodes; the newest one counts."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / 'run'
        table = pyg_sar.NodeEmbedding(Data(n_id=torch.arange(4)), 2, seed=0)
        self.model = torch.nn.ModuleDict({'table': table, 'linear': torch.nn.Linear(1, 1)})
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def write(self, value: int) -> None:
        with torch.no_grad():
            for each in self.model.parameters():
                each.fill_(value)
        args = self.root, self.model, self.optimizer
        pyg_sar.save_checkpoint(*args, epoch=value, extra={'epoch': value}, keep=1)

    def read(self) -> int:
        last = pyg_sar.load_checkpoint(self.root, self.model, self.optimizer)
        assert last is not None
        parameters = [pyg_sar.local(each).view(-1) for each in self.model.parameters()]
        is_whole = torch.cat(parameters).unique().tolist() == [last.extra['epoch']] == [last.epoch]
        return last.epoch if is_whole else -1


class _Folder:
    """A folder in the place of another one, as the partitioner writes it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / 'parts'

    def write(self, value: int) -> None:
        with replace_folder(self.root) as folder:
            for name in 'ab':
                (folder / name).write_text(str(value))

    def read(self) -> int:
        (value,) = {(self.root / name).read_text() for name in 'ab'}
        return int(value)


@pytest.mark.filterwarnings('ignore:.*fork.*:DeprecationWarning')
@pytest.mark.parametrize('kind', [_File, _Checkpoint, _Folder])
def test_killed_at_every_call_of_the_system(kind: Any, tmp_path: Path) -> None:
    what = kind(tmp_path)
    what.write(1)
    old, number, found = 1, 0, []
    while _dies(partial(what.write, old + 1), number := number + 1):
        now = what.read()
        found.append(now == old)
        assert now in (old, old + 1), f'killed at call {number}'
        old = now
    assert what.read() == old + 1
    assert len(found) > 8
    assert {*found} == {True, False}
    what.write(old + 2)
    assert what.read() == old + 2
    if what.root.is_dir():  # a folder's next writer removes what is left
        assert os.listdir(tmp_path) == [what.root.name]
        assert not [path for path in what.root.iterdir() if path.suffix == '.tmp']


@pytest.mark.parametrize('can_exchange', [True, False])
def test_names_are_exchanged(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(durable, '_exchange', lambda a, b: False)
    for name, text in (('new.tmp', 'new'), ('at', 'old')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'file').write_text(text)
    durable.put(tmp_path / 'new.tmp', tmp_path / 'at')
    texts = {path.name: (path / 'file').read_text() for path in tmp_path.iterdir()}
    assert texts == {'at': 'new', 'new.tmp': 'old'}
