"""Checkpoint folders are written as a whole or not at all, and read without running anything."""

from __future__ import annotations

import os
import pickle
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_runs import Net
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt

import pyg_sar
from pyg_sar import load_checkpoint, save_checkpoint


def _wrong(root: str) -> list[str]:
    """What is raised for models, optimizers and arguments that do not belong to the checkpoint."""
    model = pyg_sar.DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(root, model, optimizer, epoch=3)

    def load(other: torch.nn.Module, kind: Any = torch.optim.Adam, **kwargs: Any) -> str:
        state = {name: value.clone() for name, value in other.state_dict().items()}
        optimizer = kind(other.parameters())
        text = attempt(load_checkpoint, root, other, optimizer, **kwargs)
        assert all(torch.equal(value, state[k]) for k, value in other.state_dict().items())
        return text

    more = Net()
    more.head = torch.nn.Linear(1, 1)
    less = Net()
    del less.second.bias
    less.second.register_parameter('bias', None)
    rank = torch.distributed.get_rank()
    return [
        load(more),
        load(less),
        load(Net(hidden=9)),
        load(Net().double()),
        load(Net(), torch.optim.SGD),
        attempt(save_checkpoint, root, model, optimizer, epoch=3),
        attempt(save_checkpoint, root, model, optimizer, epoch=4 + rank),
        attempt(save_checkpoint, root, model, optimizer, epoch=4, keep=1 - rank),
        attempt(load_checkpoint, root if rank == 0 else f'{root}-elsewhere', model),
    ]


def test_what_does_not_belong_together_is_refused_on_all_ranks(tmp_path):
    words = [
        r"ValueError: .*expected 'head.weight' of the model, a Net, in it \(got none\)",
        r"ValueError: .*only what the model, a Net, has \(got 'second.bias', too\)",
        r"ValueError: .*'first.lin_l.weight' .* \[9, 6\] torch.float32 \(got \[8, 6\]",
        r"ValueError: .*'first.lin_l.weight' .* torch.float64 \(got \[8, 6\] torch.float32",
        r'ValueError: .*expected the state of SGD \(got Adam\)',
        r"ValueError: .*expected an 'epoch' after 3.*\(got 3\)",
        r'ValueError: expected the same epoch on all ranks',
        r"ValueError: rank 1: 'keep' must be at least 1 \(got 0\)",
        r'FileNotFoundError: rank 1: .*elsewhere',
    ]
    results = run_ranks(_wrong, 2, str(tmp_path / 'run'))
    for number, word in enumerate(words):
        assert all(re.match(word, texts[number]) for texts in results), results[0][number]
    assert os.listdir(tmp_path / 'run') == ['epoch-000003']


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize('where', ['metadata', 'inside metadata', 'values', 'tensors'])
def test_nothing_in_a_folder_is_run(tmp_path, where):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    folder = save_checkpoint(tmp_path / 'run', model, optimizer, epoch=1)
    trap = _Hostile(tmp_path / 'sprung')
    file = folder / '.metadata'
    metadata = pickle.loads(file.read_bytes())
    if where == 'metadata':
        file.write_bytes(pickle.dumps(trap))
    elif where == 'inside metadata':
        metadata.planner_data = trap
        file.write_bytes(pickle.dumps(metadata))
    else:
        key = 'training' if where == 'values' else 'model.first.lin_l.weight'
        (info,) = (v for k, v in metadata.storage_data.items() if k.fqn == key)
        torch.save(trap, folder / 'trap.distcp')
        info.relative_path, info.offset = 'trap.distcp', 0
        info.length = (folder / 'trap.distcp').stat().st_size
        file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match=r'expected (only the metadata of tensors|tensors and)'):
        load_checkpoint(tmp_path / 'run', model, optimizer)
    assert not trap.path.exists()
    # The trap is a trap.
    pickle.loads(pickle.dumps(trap))
    assert trap.path.exists()


def test_a_damaged_folder_is_refused(tmp_path):
    model = Net()
    folder = save_checkpoint(tmp_path, model, torch.optim.Adam(model.parameters()), epoch=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    metadata = (folder / '.metadata').read_bytes()
    (folder / '__0_0.distcp').write_bytes(b'')
    with pytest.raises(ValueError, match=r'cannot be read: expected .* bytes'):
        load_checkpoint(tmp_path, model)
    (folder / '.metadata').write_bytes(metadata[:-100])
    with pytest.raises(ValueError, match='metadata cannot be read'):
        load_checkpoint(tmp_path, model)
    (folder / '.metadata').unlink()
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path, model)
    assert all(torch.equal(value, weights[k]) for k, value in model.state_dict().items())


def test_nothing_outside_a_folder_is_read(tmp_path):
    model = Net()
    folder = save_checkpoint(tmp_path, model, torch.optim.Adam(model.parameters()), epoch=1)
    file = folder / '.metadata'
    metadata = pickle.loads(file.read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = f'../{folder.name}/{info.relative_path}'
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match='expected a file inside'):
        load_checkpoint(tmp_path, model)


def test_the_old_one_stays_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    """Files, their folder and the name in the root are synced; only then the old one goes."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(tmp_path, model, optimizer, epoch=1, keep=1)
    events: list[tuple[str, Any]] = []
    sync, rename = os.fsync, Path.rename

    def noted_sync(file: int) -> None:
        path = Path(os.readlink(f'/proc/self/fd/{file}'))
        sync(file)
        events.append(('sync', path))

    def noted_rename(path: Path, target: Path) -> Path:
        if Path(path).parent == tmp_path:
            events.append((str(path.name)[:5], target.name[:12]))
            if path.name.startswith('.tmp'):
                synced = {path for kind, path in events if kind == 'sync'}
                files = {(path / f.name) for f in path.iterdir()}
                renamed = {
                    f.with_name('.metadata.tmp') if f.name == '.metadata' else f for f in files
                }
                assert len(files) >= 2
                assert renamed | {path} <= synced
                assert [p.name for p in tmp_path.glob('epoch-*')] == ['epoch-000001']
            else:
                assert events[-2] == ('sync', tmp_path)
        return rename(path, target)

    monkeypatch.setattr(os, 'fsync', noted_sync)
    monkeypatch.setattr(Path, 'rename', noted_rename)
    save_checkpoint(tmp_path, model, optimizer, epoch=2, keep=1)
    renames = [event for event in events if event[0] != 'sync']
    assert renames == [('.tmp-', 'epoch-000002'), ('epoch', '.tmp-epoch-0')]
    assert os.listdir(tmp_path) == ['epoch-000002']


def test_what_is_half_written_is_never_chosen_and_goes(tmp_path, monkeypatch):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    folder = save_checkpoint(tmp_path, model, optimizer, epoch=1)
    left = tmp_path / '.tmp-epoch-000009-0123456789ab'
    left.mkdir()
    (left / '__0_0.distcp').write_bytes(b'half')
    (tmp_path / '.tmp-epoch-000000-old').mkdir()
    (tmp_path / 'notes').mkdir()
    assert load_checkpoint(tmp_path, model, optimizer).path == folder

    def full(*_: object) -> None:
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as context:
        context.setattr(pickle, 'dump', full)
        with pytest.raises(OSError, match='No space left'):
            save_checkpoint(tmp_path, model, optimizer, epoch=2)
    assert sorted(os.listdir(tmp_path)) == ['epoch-000001', 'notes']
    save_checkpoint(tmp_path, model, optimizer, epoch=2)
    assert sorted(os.listdir(tmp_path)) == ['epoch-000001', 'epoch-000002', 'notes']


def _disk_full_on_rank_1(root: str) -> list[str]:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    save_checkpoint(root, model, optimizer, epoch=1)
    sync = os.fsync
    if torch.distributed.get_rank() == 1:

        def full(file: int) -> None:
            raise OSError(28, 'No space left on device')

        os.fsync = full
    try:
        text = attempt(save_checkpoint, root, model, optimizer, epoch=2)
    finally:
        os.fsync = sync
    state = random.getstate()
    found = load_checkpoint(root, model, optimizer)
    random.setstate(state)
    return [text, found.path.name]


def test_a_full_disk_of_one_rank_raises_on_all(tmp_path):
    results = run_ranks(_disk_full_on_rank_1, 3, str(tmp_path))
    assert_all_raise([text for text, _ in results], 'OSError', 'rank 1: ', 'No space left')
    assert [name for _, name in results] == ['epoch-000001'] * 3
    assert os.listdir(tmp_path) == ['epoch-000001']
