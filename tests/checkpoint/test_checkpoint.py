"""Checkpoints: what is saved comes back, to the bit."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_runs import Net, Run, losses, resumed
from few import few
from on_ranks import on_ranks, parts_of
from ranks import run_ranks
from small_graphs import small_graph
from torch.optim import lr_scheduler

import pyg_sar
from pyg_sar import load_checkpoint, save_checkpoint


@pytest.fixture(autouse=True)
def _python_random_goes_on() -> Iterator[None]:
    """PyG names generated code by it: two models must not get the same name."""
    state = random.getstate()
    yield
    random.setstate(state)


def _interrupted(parts: str, root: str, stop: int, num_epochs: int, **options: Any) -> list[float]:
    """As resumed, in two pieces: the second one starts from the first one's last checkpoint."""
    state = random.getstate()
    resumed(parts, root, stop, **options)
    torch.manual_seed(99)
    found = resumed(parts, root, num_epochs, **options)
    random.setstate(state)
    return found


@pytest.mark.parametrize('options', [{'dropout': 0.3}, {'narrow': True}])
@pytest.mark.parametrize('world_size', few([3, 1]))
def test_resumed_training_is_the_same_to_the_bit(tmp_path, world_size, options):
    """On three ranks, where the order of a sum over ranks matters."""
    parts, root = str(parts_of(world_size)), str(tmp_path / 'run')
    want = run_ranks(losses, world_size, parts, 5, **options)
    assert run_ranks(_interrupted, world_size, parts, root, 2, 5, **options) == want
    assert sorted(os.listdir(root)) == ['epoch-000004', 'epoch-000005']


@on_ranks(3)
def test_the_sum_of_gradients_is_the_same_in_every_epoch(data):
    """torch lays out the buckets once more after its first backward, which changes last bits."""
    run, gradients = Run(data), []
    weights = copy.deepcopy(run.model.state_dict())
    for _ in range(2):
        run.model.load_state_dict(weights)
        run.epoch()
        gradients.append([parameter.grad.clone() for parameter in run.model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_training_goes_on_with_another_number_of_ranks_and_parts(tmp_path):
    root = tmp_path / 'run'
    plain = Run(small_graph(), plain=True)
    want = [plain.epoch() for _ in range(6)]
    run_ranks(resumed, 3, str(parts_of(3)), str(root), 2)
    run_ranks(resumed, 2, str(parts_of(2)), str(root), 4)
    found = resumed(str(parts_of(4)), str(root), 5)  # one process, without a process group
    run = Run(small_graph(), plain=True)  # PyG on one machine
    last = run.load(root)
    assert (last.num_ranks, last.path) == (1, root / 'epoch-000005')
    assert [*found, run.epoch()] == pytest.approx(want, rel=0, abs=1e-10)


def test_torch_loads_the_weights_of_the_plain_model(tmp_path):
    run_ranks(resumed, 2, str(parts_of(2)), str(tmp_path / 'run'), 2)
    ours, plain = Net().double(), Net().double()
    assert load_checkpoint(tmp_path / 'run', ours).epoch == 2
    file = tmp_path / 'run' / 'epoch-000002' / 'model.pt'
    plain.load_state_dict(torch.load(file, weights_only=True))
    for name, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


def _states(root: str) -> tuple[Any, Any]:
    """What each generator draws after saving, and after loading."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = pyg_sar.comm.ranks.rank()
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


OPTIMIZERS = {
    'SGD': lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    'groups': lambda p: torch.optim.AdamW([{'params': p, 'betas': (0.8, 0.9)}], amsgrad=True),
    'LBFGS': lambda p: torch.optim.LBFGS(p, max_iter=3),
}
SCHEDULERS = {
    'MultiStepLR': lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    'ReduceLROnPlateau': lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    'LambdaLR': lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    'SequentialLR': lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_optimizers_come_back_whole(tmp_path, name):
    def step() -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum(((p - 1) ** 2).sum() for p in model.parameters())
            loss.backward()
            return loss

        optimizer.step(closure)

    model = Net()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    step()
    save_checkpoint(tmp_path, model, optimizer, epoch=1)
    step()
    want = {k: v.clone() for k, v in model.state_dict().items()}
    model = Net()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    load_checkpoint(tmp_path, model, optimizer)
    step()
    for key, value in model.state_dict().items():
        assert torch.equal(value, want[key]), key


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
    for _ in range(2):
        step(optimizer, scheduler)
    save_checkpoint(tmp_path, model, optimizer, scheduler=scheduler, epoch=2)
    want = [step(optimizer, scheduler) for _ in range(4)]
    model, optimizer, scheduler = make()
    load_checkpoint(tmp_path, model, optimizer, scheduler)
    assert [step(optimizer, scheduler) for _ in range(4)] == want
