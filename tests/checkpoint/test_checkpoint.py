"""Checkpoints: what is saved comes back, to the bit, and nothing else is read."""

from __future__ import annotations

import copy
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_runs import Net, Run, losses, resumed
from few import few
from ranks import run_ranks
from small_graphs import cut, small_graph
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


@pytest.mark.parametrize('world_size', few([3, 1]))
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
