"""Checkpoints: what is saved comes back, to the bit, and nothing else is read."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_runs import Net, Run, losses, resumed
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch_geometric.data import Data

import pyg_sar
from pyg_sar import load_checkpoint, save_checkpoint


@pytest.fixture(autouse=True)
def _python_random_goes_on() -> Iterator[None]:
    """PyG names generated code by it: two models must not get the same name."""
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.fixture
def graph() -> Data:
    return small_graph()


def _parts(graph: Data, tmp_path: Path, num_parts: int) -> str:
    return str(cut(graph, num_parts, tmp_path / f'parts {num_parts}'))


def _interrupted(parts: str, root: str, stop: int, num_epochs: int, dropout: float) -> list[float]:
    """As resumed, in two pieces: the second one starts from the first one's last checkpoint."""
    state = random.getstate()
    resumed(parts, root, stop, dropout=dropout)
    torch.manual_seed(99)
    found = resumed(parts, root, num_epochs, dropout=dropout)
    random.setstate(state)
    return found


@pytest.mark.parametrize('world_size', [1, 3])
def test_resumed_training_is_the_same_to_the_bit(graph, tmp_path, world_size):
    """With dropout; on three ranks, where the order of a sum over ranks matters."""
    parts, root = _parts(graph, tmp_path, world_size), str(tmp_path / 'run')
    want = run_ranks(losses, world_size, parts, 7, dropout=0.3)
    found = run_ranks(_interrupted, world_size, parts, root, 2, 7, 0.3)
    assert found == want
    assert sorted(os.listdir(root)) == ['epoch-000006', 'epoch-000007']


def _gradients_at_the_same_weights(root: str) -> list[bool]:
    run = Run(pyg_sar.load_shard(root))
    assert all(parameter.grad is None for parameter in run.model.parameters())
    weights = copy.deepcopy(run.model.state_dict())
    gradients = []
    for _ in range(2):
        run.model.load_state_dict(weights)
        run.epoch()
        gradients.append([parameter.grad.clone() for parameter in run.model.parameters()])
    return [torch.equal(first, second) for first, second in zip(*gradients, strict=True)]


def test_the_sum_of_gradients_is_the_same_in_every_epoch(graph, tmp_path):
    """torch lays out the buckets once more after its first backward, which changes last bits."""
    results = run_ranks(_gradients_at_the_same_weights, 3, _parts(graph, tmp_path, 3))
    assert all(all(equal) for equal in results)


def test_training_goes_on_with_another_number_of_ranks_and_parts(graph, tmp_path):
    root = tmp_path / 'run'
    want = losses_plain(graph, 6)
    found = run_ranks(resumed, 3, _parts(graph, tmp_path, 3), str(root), 2)[0]
    found = run_ranks(resumed, 2, _parts(graph, tmp_path, 2), str(root), 4)[0]
    # One process without a process group, which owns four parts.
    found = resumed(_parts(graph, tmp_path, 4), str(root), 5)
    # Plain PyG on one machine.
    run = Run(graph, plain=True)
    last = run.load(root)
    assert last.num_ranks == 1
    assert last.path == root / 'epoch-000005'
    found = [*found, run.epoch()]
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        torch.tensor(want, dtype=torch.float64),
        rtol=0,
        atol=1e-10,
    )


def losses_plain(graph: Data, num_epochs: int) -> list[float]:
    run = Run(graph, plain=True)
    return [run.epoch() for _ in range(num_epochs)]


def test_torch_reads_the_model_under_the_plain_keys(graph, tmp_path):
    parts = _parts(graph, tmp_path, 2)
    run_ranks(resumed, 2, parts, str(tmp_path / 'run'), 2)
    ours, plain = Net().double(), Net().double()
    assert load_checkpoint(tmp_path / 'run', ours).epoch == 2
    state = {'model': plain.state_dict()}
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'torch.distributed is')
        dcp.load(state, checkpoint_id=tmp_path / 'run' / 'epoch-000002')
    plain.load_state_dict(state['model'])
    assert list(plain.state_dict()) == list(Net().state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def _states(root: str) -> tuple[Any, Any]:
    """What each generator draws after saving, and after loading."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    torch.manual_seed(rank)
    np.random.seed(rank + 7)  # noqa: NPY002
    before = random.getstate()
    np.random.standard_normal()  # noqa: NPY002 (leaves one more in store)
    save_checkpoint(root, model, optimizer, epoch=1)
    first = _draw()
    load_checkpoint(root, model)
    second = _draw()
    load_checkpoint(root, model, optimizer)
    third = _draw()
    random.setstate(before)
    assert second != first
    return first, third


def _draw() -> tuple[Any, ...]:
    return torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.random()  # noqa: NPY002


def test_random_states_are_those_of_each_rank(tmp_path):
    results = run_ranks(_states, 2, str(tmp_path))
    assert [first for first, _ in results] == [third for _, third in results]
    assert results[0][0][:2] != results[1][0][:2]


def test_extra_values_and_none_at_all(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert load_checkpoint(tmp_path / 'none', model, optimizer) is None
    assert not (tmp_path / 'none').exists()
    extra = {'best': (1, 0.5), 'names': ['a', None], 'sum': torch.ones(2), 'nested': {3: True}}
    save_checkpoint(tmp_path, model, optimizer, epoch=0, extra=extra)
    found = load_checkpoint(tmp_path, model, optimizer)
    assert found.epoch == 0
    assert torch.equal(found.extra.pop('sum'), extra.pop('sum'))
    assert found.extra == extra
    with pytest.raises(ValueError, match="'extra' cannot be saved"):
        save_checkpoint(tmp_path, model, optimizer, epoch=1, extra={'model': model})
    assert os.listdir(tmp_path) == ['epoch-000000']


@pytest.mark.parametrize(
    'make',
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW([{'params': p, 'lr': 0.02, 'betas': (0.8, 0.9)}], amsgrad=True),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.LBFGS(p, max_iter=3),
    ],
)
def test_optimizers_come_back_whole(tmp_path, make):
    def step() -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum(((p - 1) ** 2).sum() for p in model.parameters())
            loss.backward()
            return loss

        optimizer.step(closure)

    model = Net()
    optimizer = make(list(model.parameters()))
    step()
    save_checkpoint(tmp_path, model, optimizer, epoch=1)
    step()
    want = {k: v.clone() for k, v in model.state_dict().items()}
    model = Net()
    optimizer = make(list(model.parameters()))
    load_checkpoint(tmp_path, model, optimizer)
    step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, want[name]), name


SCHEDULERS = {
    'MultiStepLR': lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
    'OneCycleLR': lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    'ReduceLROnPlateau': lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    'LambdaLR': lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    'CosineAnnealingWarmRestarts': lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        o, 2
    ),
    'SequentialLR': lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [2],
    ),
}


@pytest.mark.parametrize('name', SCHEDULERS)
def test_schedulers_come_back(tmp_path, name):
    def make() -> tuple[Any, Any, Any]:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, SCHEDULERS[name](optimizer)

    def step(optimizer: Any, scheduler: Any) -> float:
        optimizer.step()
        scheduler.step(*([1.0] if name == 'ReduceLROnPlateau' else []))
        return optimizer.param_groups[0]['lr']

    model, optimizer, scheduler = make()
    want = [step(optimizer, scheduler) for _ in range(2)]
    save_checkpoint(tmp_path, model, optimizer, scheduler=scheduler, epoch=2)
    want = [step(optimizer, scheduler) for _ in range(4)]
    model, optimizer, scheduler = make()
    load_checkpoint(tmp_path, model, optimizer, scheduler)
    assert [step(optimizer, scheduler) for _ in range(4)] == want


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
