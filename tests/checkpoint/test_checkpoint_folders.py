"""Checkpoint folders are written as a whole or not at all, and read without running anything."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_runs import Net
from on_ranks import on_ranks
from ranks import run_once, run_ranks
from small_graphs import assert_all_raise, attempt
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import load_checkpoint, save_checkpoint
from pyg_sar.checkpoint import save
from pyg_sar.checkpoint.files import write_state
from pyg_sar.comm.ranks import rank
from pyg_sar.utils import durable


def _net() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = Net()
    return model, torch.optim.Adam(model.parameters())


@on_ranks(2, 0)
def test_what_does_not_belong_together_is_refused_on_all_ranks(tmp_path):
    model, root = pyg_sar.DistributedDataParallel(Net()), tmp_path / 'run'
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(root, model, optimizer, epoch=3)
    more, less = Net(), Net()
    more.head = torch.nn.Linear(1, 1)
    del less.second.bias
    less.second.register_parameter('bias', None)
    adam, first = torch.optim.Adam, "'first.lin_l.weight' .*"
    for other, kind, words in (
        (more, adam, "'head.weight'"),
        (less, adam, "'second.bias'"),
        (Net(hidden=9), adam, first + r'\[9, 6\] torch.float32 \(got \[8, 6\]'),
        (Net().double(), adam, first + r'torch.float64 \(got \[8, 6\] torch.float32'),
        (Net(), torch.optim.SGD, r'SGD \(got Adam\)'),
    ):
        state = {name: value.clone() for name, value in other.state_dict().items()}
        with pytest.raises(ValueError, match=words):
            load_checkpoint(root, other, kind(other.parameters()))
        assert all(torch.equal(value, state[k]) for k, value in other.state_dict().items())
    for words, options in (
        (r"'epoch' after 3.*\(got 3\)", {'epoch': 3}),
        ('same epoch on all ranks', {'epoch': 4 + rank()}),
        ("^(rank 1: )?'keep'", {'epoch': 4, 'keep': 1 - rank()}),
    ):
        with pytest.raises(ValueError, match=words):
            save_checkpoint(root, model, optimizer, **options)
    with pytest.raises(FileNotFoundError, match='elsewhere'):
        load_checkpoint(root if rank() == 0 else f'{root}-elsewhere', model)
    assert os.listdir(root) == ['epoch-000003']


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize('name', ['model.pt', 'optimizer.pt', 'extra.pt', 'checkpoint.json'])
@pytest.mark.parametrize('dump', [torch.save, lambda value, file: pickle.dump(value, file)])
def test_nothing_in_a_folder_is_run(tmp_path, name, dump):
    folder, trap = save_checkpoint(tmp_path / 'run', *_net(), epoch=1), tmp_path / 'sprung'
    with (folder / name).open('wb') as file:
        dump(_Hostile(trap), file)
    with pytest.raises(ValueError, match=name):
        load_checkpoint(tmp_path / 'run', *_net())
    assert not trap.exists()
    pickle.loads(pickle.dumps(_Hostile(trap)))  # the trap is a trap
    assert trap.exists()


class _Allowed:
    def __init__(self) -> None:
        self.best = torch.ones(2)


def test_a_class_that_the_user_allows_is_saved_and_loaded(tmp_path):
    extra = {'record': _Allowed()}
    with pytest.raises(ValueError, match="'extra' cannot be saved"):
        save_checkpoint(tmp_path, *_net(), epoch=1, extra=extra)
    with torch.serialization.safe_globals([_Allowed]):
        save_checkpoint(tmp_path, *_net(), epoch=1, extra=extra)
        found = load_checkpoint(tmp_path, *_net()).extra['record']
    assert isinstance(found, _Allowed)
    assert torch.equal(found.best, extra['record'].best)
    with pytest.raises(ValueError, match=r'extra\.pt cannot be read'):
        load_checkpoint(tmp_path, *_net())


@pytest.mark.parametrize('name', ['model.pt', 'checkpoint.json'])
def test_a_damaged_folder_is_refused(tmp_path, name):
    model, optimizer = _net()
    folder = save_checkpoint(tmp_path, model, optimizer, epoch=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for kept in (100, 0):
        (folder / name).write_bytes((folder / name).read_bytes()[:kept])
        with pytest.raises(ValueError, match=f'{name} cannot be read'):
            load_checkpoint(tmp_path, model)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_checkpoint(tmp_path, model)
    assert all(torch.equal(value, weights[k]) for k, value in model.state_dict().items())


def test_other_formats_are_named_with_the_version_that_wrote_them(tmp_path):
    folder = save_checkpoint(tmp_path, *_net(), epoch=1)
    about = json.loads((folder / 'checkpoint.json').read_text())
    assert about['written_by'] == pyg_sar.__version__
    later = {**about, 'format': 3, 'written_by': '7.1.0', 'states': {'a': 'later form'}}
    (folder / 'checkpoint.json').write_text(json.dumps(later))
    with pytest.raises(ValueError, match=r'pyg_sar 7\.1\.0'):
        load_checkpoint(tmp_path, *_net())


def test_the_old_one_stays_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    """Files, their folder and the name in the root are synced; only then the old one goes."""
    model, optimizer = _net()
    save_checkpoint(tmp_path, model, optimizer, epoch=1, keep=1)
    events: list[tuple[str, Any]] = []
    sync, rename, replace = os.fsync, Path.rename, Path.replace

    def noted_sync(file: int) -> None:
        sync(file)
        events.append(('sync', Path(os.readlink(f'/proc/self/fd/{file}'))))

    def noted_replace(path: Path, target: Path) -> Path:
        synced = {path for kind, path in events if kind == 'sync'}
        files = {*path.iterdir()}
        assert len(files) >= 2
        assert files | {path} <= synced
        assert [p.name for p in tmp_path.glob('epoch-*')] == ['epoch-000001']
        events.append(('new', target.name))
        return replace(path, target)

    def noted_rename(path: Path, target: Path) -> Path:
        assert events[-1] == ('sync', tmp_path)
        events.append(('old', path.name))
        return rename(path, target)

    monkeypatch.setattr(os, 'fsync', noted_sync)
    monkeypatch.setattr(Path, 'rename', noted_rename)
    monkeypatch.setattr(Path, 'replace', noted_replace)
    save_checkpoint(tmp_path, model, optimizer, epoch=2, keep=1)
    renames = [event for event in events if event[0] != 'sync']
    assert renames == [('new', 'epoch-000002'), ('old', 'epoch-000001')]
    assert os.listdir(tmp_path) == ['epoch-000002']


def _full(_: int) -> None:
    raise OSError(28, 'No space left on device')


def test_what_is_half_written_is_never_chosen_and_goes(tmp_path, monkeypatch):
    model, optimizer = _net()
    folder = save_checkpoint(tmp_path, model, optimizer, epoch=1)
    left = tmp_path / '.epoch-000009.0123456789ab.tmp'
    left.mkdir()
    (left / 'model.pt').write_bytes(b'half')
    (left / 'made_by_pyg_sar').touch()
    for name in ('.epoch-best.tmp', '.epoch-000009.123456789abc.tmp'):  # not ours
        (tmp_path / name).mkdir()
        (tmp_path / name / 'model.pt').write_bytes(b'weeks of work')
    others = {name for name in os.listdir(tmp_path) if name[0] == '.'} - {left.name}
    (tmp_path / 'notes').mkdir()
    assert load_checkpoint(tmp_path, model, optimizer).path == folder
    with monkeypatch.context() as context:
        context.setattr(os, 'fsync', _full)
        with pytest.raises(OSError, match='No space left'):
            save_checkpoint(tmp_path, model, optimizer, epoch=2)
    assert {*os.listdir(tmp_path)} == {'epoch-000001', 'notes', left.name, *others}
    save_checkpoint(tmp_path, model, optimizer, epoch=2)
    assert {*os.listdir(tmp_path)} == {'epoch-000001', 'epoch-000002', 'notes', *others}


def test_a_second_run_in_the_midst_of_the_first_is_refused(tmp_path, monkeypatch):
    """In one process: who tries to save while another one writes is told who that is."""
    told: list[str] = []
    write = save.write_state

    def write_slowly(*args: Any) -> None:
        if not told:
            told.append('')
            told[0] = attempt(save_checkpoint, tmp_path, *_net(), epoch=1)
        write(*args)

    monkeypatch.setattr(save, 'write_state', write_slowly)
    model, optimizer = _net()
    save_checkpoint(tmp_path, model, optimizer, epoch=1)
    here = f"RuntimeError: '{tmp_path}' must have one writer at a time .*process {os.getpid()} on "
    assert re.match(here, told[0])
    assert os.listdir(tmp_path) == ['epoch-000001']
    assert load_checkpoint(tmp_path, model, optimizer).epoch == 1


def _save(root: str) -> str:
    return attempt(save_checkpoint, root, *_net(), epoch=1)


def test_all_ranks_hear_that_another_run_writes(tmp_path):
    with durable.locked(tmp_path / '.writing'):
        texts = run_ranks(_save, 3, str(tmp_path))
        assert_all_raise(texts, 'RuntimeError', f'process {os.getpid()} on', '.writing')
    assert run_ranks(_save, 3, str(tmp_path)) == ['no error'] * 3
    assert os.listdir(tmp_path) == ['epoch-000001']


def _held_while_saved(folder: Path) -> float:
    state = {'weight': torch.ones(1 << 25)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_state(folder, 'model', state)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (after - before) * 1024 / state['weight'].nbytes


def test_a_state_is_held_once_while_it_is_saved(tmp_path):
    """Beside the model itself: what is written is neither collected nor read back as a whole."""
    assert run_once(_held_while_saved, 1, tmp_path)[0] < 0.5
    assert torch.load(tmp_path / 'model.pt')['weight'].sum() == 1 << 25


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    limit, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limit[1]))
    model = torch.nn.Linear(400, 400)
    try:
        with pytest.raises(OSError, match='File too large'):
            save_checkpoint(tmp_path, model, torch.optim.SGD(model.parameters()), epoch=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, action)
    assert os.listdir(tmp_path) == []


@on_ranks(3, 0)
def test_a_full_disk_of_one_rank_raises_on_all(tmp_path):
    """A table of nodes is what rank 1 writes."""
    nodes = Data(n_id=torch.arange(rank(), 9, 3))
    model = torch.nn.ModuleDict({'table': pyg_sar.NodeEmbedding(nodes, 2, seed=0)})
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(tmp_path, model, optimizer, epoch=1)
    with pytest.MonkeyPatch.context() as patch:
        if rank() == 1:
            patch.setattr(os, 'fsync', _full)
        with pytest.raises(OSError, match='No space left') as told:
            save_checkpoint(tmp_path, model, optimizer, epoch=2)
    assert ('rank 1: ' in str(told.value)) is (rank() != 1)
    state = random.getstate()
    assert load_checkpoint(tmp_path, model, optimizer).path.name == 'epoch-000001'
    random.setstate(state)
    assert os.listdir(tmp_path) == ['epoch-000001']
