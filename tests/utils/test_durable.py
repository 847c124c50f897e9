"""Wherever a process is killed while it writes: what is there is the old or the new, and whole."""

from __future__ import annotations

import errno
import fcntl
import io
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np
import pytest
import torch
from expressions import expressions
from ranks import context
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.utils import durable

_OF_SYSTEM = expressions("""
open; flock; truncate; posix_fallocate; write; flush; close; fsync; rename; replace; mkdir; unlink
rmdir
""")
"""Functions of ``os`` and of files that change what is on the disk."""


def _dies(call: Callable[[], Any], number: int) -> bool:
    """Runs a call in a process that dies at a call of the system; whether it came to that one."""
    child = os.fork()
    if child == 0:
        left = number

        def count(frame: Any, event: str, function: Any) -> None:
            nonlocal left
            counts = frame.f_code is durable._exchange.__code__  # by ctypes: before, and after
            if event == 'c_call' and function.__name__ in _OF_SYSTEM:
                of_files = isinstance(getattr(function, '__self__', None), io.IOBase)
                counts = of_files or function.__module__ in ('posix', '_io', 'io', 'fcntl')
            left -= counts
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


class _Partition:
    """A partition, which by force takes the place of another one; loaded with its checksums."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / 'parts'
        self.data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))

    def write(self, value: int) -> None:
        data = Data(x=self.data.x * value, edge_index=self.data.edge_index)
        pyg_sar.partition_graph(data, 1, self.root, method='range', force=True)

    def read(self) -> int:
        x = pyg_sar.load_shard(self.root).x
        return int(x[0]) if x.equal(x[0].expand(4, 1)) else -1


@pytest.mark.filterwarnings('ignore:.*fork.*:DeprecationWarning')
@pytest.mark.parametrize(
    ('kind', 'every'),
    [
        *((_File, 1), (_Checkpoint, 5), (_Partition, 9)),
        *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in (_Checkpoint, _Partition)),
    ],
)
def test_killed_at_calls_of_the_system(kind: Any, every: int, tmp_path: Path) -> None:
    """At each one, or at every fifth or ninth, as each is a new process."""
    what = kind(tmp_path)
    what.write(1)
    old, number, found = 1, 0, []
    while _dies(partial(what.write, old + 1), number := number + every):
        now = what.read()
        found.append(now == old)
        assert now in (old, old + 1), f'killed at call {number}'
        old = now
    assert what.read() == old + 1
    assert len(found) * every > 8
    assert {*found} == {True, False} or every > 1
    what.write(old + 2)
    assert what.read() == old + 2
    if what.root.is_dir():  # a folder's next writer removes what is left
        assert os.listdir(tmp_path) == [what.root.name]
        assert not [path for path in what.root.iterdir() if path.suffix == '.tmp']


def _killed(folder: Path, old: int = 0) -> Iterator[_Partition]:
    """Partitions of which each next one is killed a call later, until one is not any more."""
    for number in itertools.count(1):
        what = _Partition(folder / str(number))
        if old:
            what.write(old)
        if not _dies(partial(what.write, old + 1), number):
            return
        yield what


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*fork.*:DeprecationWarning')
def test_a_first_partition_killed_at_every_call(tmp_path: Path) -> None:
    found = []
    for what in _killed(tmp_path):
        found.append(what.root.exists())
        assert not found[-1] or what.read() == 1
        what.write(2)
        assert what.read() == 2
        assert os.listdir(what.root.parent) == ['parts']
    assert {*found} == {True, False}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*fork.*:DeprecationWarning')
def test_killed_where_no_names_are_exchanged(tmp_path: Path, monkeypatch: Any) -> None:
    """Between two renames the place is empty: both are beside it, and no later run removes them."""
    monkeypatch.setattr(durable, '_exchange', lambda a, b: False)
    gone = 0
    for what in _killed(tmp_path, old=1):
        if what.root.exists():
            assert what.read() in (1, 2)
            continue
        gone += 1
        (left,) = what.root.parent.glob('.parts.*.tmp')
        what.write(3)
        assert what.read() == 3
        for name, value in (('new.old', 1), ('new.tmp', 2)):
            what.root = left / name
            assert what.read() == value
    assert gone == 1


def _hold(lock: Path, pipe: Any) -> None:
    with durable.locked(lock):
        pipe.send('ready')
        time.sleep(600)


def test_a_lock_is_of_one_process_while_it_lives(tmp_path: Path) -> None:
    lock = tmp_path / 'lock'
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(lock, theirs), daemon=True)
    process.start()
    assert ours.recv() == 'ready'
    who = rf'one writer at a time .*process {process.pid} on {gethostname()} since 20\d\d-'
    with pytest.raises(RuntimeError, match=who), durable.locked(lock):
        pytest.fail('locked twice')
    process.kill()
    process.join()
    assert lock.exists()
    with durable.locked(lock):
        assert f'process {os.getpid()} ' in lock.read_text()
        with pytest.raises(RuntimeError, match=f'process {os.getpid()} '), durable.locked(lock):
            pytest.fail('locked twice')
    assert not lock.exists()


def test_locks_of_many_threads_and_what_was_left(tmp_path: Path) -> None:
    """One holds at a time; what others begin meanwhile is never taken for what was left."""
    held, most = [0], [0]

    def work() -> None:
        for _ in range(50):
            durable.remove_left(tmp_path, 'a')
            with durable.workshop(tmp_path / 'a') as new:
                (new / 'file').touch()
                with suppress(RuntimeError), durable.locked(tmp_path / 'lock'):
                    held[0] += 1
                    most[0] = max(most[0], held[0])
                    time.sleep(0)
                    held[0] -= 1
                (new / 'file').unlink()

    with ThreadPoolExecutor(4) as pool:
        for thread in [pool.submit(work) for _ in range(4)]:
            thread.result()
    assert most == [1]
    assert [*tmp_path.iterdir()] == []


def test_without_locks_nobody_is_held_up_and_nothing_removed(tmp_path: Path, monkeypatch: Any):
    def none(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, 'No locks available')

    left = tmp_path / '.a.0123456789ab.tmp'
    left.mkdir()
    (left / 'made_by_pyg_sar').touch()
    with monkeypatch.context() as context:
        context.setattr(fcntl, 'flock', none)
        with durable.locked(tmp_path / 'lock'), durable.locked(tmp_path / 'lock'):
            durable.remove_left(tmp_path, 'a')
        with durable.workshop(tmp_path / 'a') as new:
            (new / 'file').touch()
    assert [*tmp_path.iterdir()] == [left]
    assert [*left.iterdir()] == [left / 'made_by_pyg_sar']
    durable.remove_left(tmp_path, 'a')
    assert not left.exists()


@pytest.mark.parametrize('can_exchange', [True, False])
def test_names_are_exchanged(can_exchange: bool, tmp_path: Path, monkeypatch: Any) -> None:
    if not can_exchange:
        monkeypatch.setattr(durable, '_exchange', lambda a, b: False)
    for name, text in (('new.tmp', 'new'), ('at', 'old')):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'file').write_text(text)
    durable.put(tmp_path / 'new.tmp', tmp_path / 'at')
    texts = {path.name: (path / 'file').read_text() for path in tmp_path.iterdir()}
    assert texts == {'at': 'new', 'new.tmp': 'old'}
