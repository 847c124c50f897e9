"""Sampled runs that stop in the middle of an epoch go on with the same batches."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import assert_bits
from checkpoint_runs import Net
from on_ranks import on_ranks
from ranks import RankError, run_as_threads, run_once, run_ranks
from small_graphs import cut, small_graph

import pyg_sar
from pyg_sar.comm.ranks import rank

EPOCHS = 2
Steps = list[tuple[float, dict[str, torch.Tensor]]]


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 4, tmp_path_factory.mktemp('batches') / 'parts'))


class SampledRun:
    """A run of two epochs; what it counts are steps."""

    def __init__(
        self,
        parts: str,
        root: str | None,
        *,
        dropout: float = 0.0,
        fan_outs: tuple[int, int] = (2, 2),
        of_batch: bool = True,
        **options: Any,
    ) -> None:
        data = pyg_sar.load_shard(parts)
        torch.manual_seed(4)
        self.model = pyg_sar.DistributedDataParallel(Net(dropout=dropout).double())
        self.model.module.norm.train(of_batch)  # statistics of this rank's batch
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        given = {'batch_size': 4, 'shuffle': True, 'seed': 3, **options}
        self.loader = pyg_sar.NeighborLoader(data, fan_outs, data.train_mask, **given)
        self.step, self.root = 0, root
        if root is not None:
            last = pyg_sar.load_checkpoint(root, self.model, self.optimizer, loader=self.loader)
            self.step = 0 if last is None else last.epoch

    def steps(self, stop: int | None = None) -> Steps:
        """Loss and ids of the batches up to a step; there it saves and leaves."""
        found = []
        while self.step < EPOCHS * len(self.loader):
            for batch in self.loader:
                out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
                values = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
                loss = pyg_sar.loader.mean_of_batches(values)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                ids = {name: batch[name] for name in (*NAMES, 'edge_index')}
                found.append((loss.item(), ids))
                if self.step == stop:
                    self.save()
                    return found
        return found

    def save(self) -> None:
        pyg_sar.save_checkpoint(
            self.root, self.model, self.optimizer, epoch=self.step, loader=self.loader
        )


def _steps(parts: str, root: str | None, *stops: int | None, **options: Any) -> Steps:
    """Of one run after another, each up to a step or to the end."""
    runs = ((SampledRun(parts, root, **options), stop) for stop in stops or (None,))
    return [step for run, stop in runs for step in run.steps(stop)]


def test_losses_and_batches_are_the_same_to_the_bit(parts, tmp_path):
    """Stopped after the first batch and after the last one of an epoch."""
    want = run_as_threads(_steps, 2, parts, None)
    of_epoch = len(want[0]) // EPOCHS
    assert of_epoch > 2
    assert_bits(run_as_threads(_steps, 2, parts, str(tmp_path), 1, of_epoch, None), want)


@pytest.mark.slow  # in processes
def test_with_dropout(parts, tmp_path):
    """A saved state counts the batches that were taken, not those that were made."""
    want = run_ranks(_steps, 2, parts, None, dropout=0.3)
    assert_bits(run_ranks(_steps, 2, parts, str(tmp_path), 2, None, dropout=0.3), want)


def _ids(of_ranks: list[Steps]) -> list[dict[str, list[int]]]:
    """Of every batch of all ranks, each once and in order."""
    return [
        {name: torch.cat([ids[name] for _, ids in each]).unique().tolist() for name in NAMES}
        for each in zip(*of_ranks, strict=True)
    ]


NAMES = ('n_id', 'e_id', 'input_id')
ALL_ALIKE: dict[str, Any] = {'fan_outs': (-1, -1), 'of_batch': False}
"""With these a batch of all ranks is that of one, and so is its loss."""


def test_another_number_of_ranks_goes_on_with_the_same_batches(parts, tmp_path):
    want = run_as_threads(_steps, 1, parts, None, **ALL_ALIKE)
    runs = [
        run_as_threads(_steps, ranks, parts, str(tmp_path), stop, **ALL_ALIKE)
        for ranks, stop in ((4, 2), (2, 4), (1, None))
    ]
    assert [batch for run in runs for batch in _ids(run)] == _ids(want)
    losses = [loss for run in runs for loss, _ in run[0]]
    assert losses == pytest.approx([loss for loss, _ in want[0]], rel=0, abs=1e-10)


def _killed(parts: str, root: str, log: str, **options: Any) -> None:
    """Takes a batch and saves, takes the next one and is killed, with every rank."""
    run = SampledRun(parts, root, **options)
    found = run.steps(run.step + 1)
    torch.save(found, f'{log}.{rank()}')
    next(iter(run.loader))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow  # in processes
def test_killed_at_every_batch(parts, tmp_path):
    """Each life dies one batch later than the one before, and on another number of ranks."""
    want = run_as_threads(_steps, 1, parts, None, **ALL_ALIKE)
    lives: list[Any] = []
    count = len(want[0]) // EPOCHS + 1  # the first of the next epoch, too
    for number in range(count):
        ranks, log = (2, 4, 1)[number % 3], str(tmp_path / f'life {number}')
        with contextlib.suppress(RankError):  # one outlived another by a moment
            args = (parts, str(tmp_path / 'run'), log)
            run_once(_killed, ranks, *args, **ALL_ALIKE, may_die=range(ranks))
        found = [torch.load(f'{log}.{rank}') for rank in range(ranks)]
        lives += _ids(found)
        assert found[0][0][0] == pytest.approx(want[0][number][0], rel=0, abs=1e-10)
    assert lives == _ids(want)[:count]


@on_ranks(2, 0, by='threads')
def test_ranks_at_different_batches_save_nothing(parts, tmp_path):
    """Rank 1 has taken one batch more."""
    run = SampledRun(parts, str(tmp_path))
    batches = iter(run.loader)
    for _ in range(1 + rank()):
        next(batches)
    with pytest.raises(ValueError, match=r"(?=.*'loader')(?=.*'batch': 1)(?=.*'batch': 2)"):
        run.save()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('wrong', 'ranks', 'words'),
    [('loader', [0, 1], "'seed' of this one, 4"), ('optimizer', [1], 'the state of SGD')],
)
@on_ranks(2, 0, by='threads')
def test_what_is_refused_changes_nothing(parts, tmp_path, wrong, ranks, words):
    """Where some ranks have another loader or optimizer."""
    _steps(parts, str(tmp_path), 3)
    is_wrong = rank() in ranks
    other = SampledRun(parts, None, seed=4 if is_wrong and wrong == 'loader' else 3)
    next(iter(other.loader))
    if is_wrong and wrong == 'optimizer':
        other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    before = other.loader.state_dict()
    weights = [p.detach().clone() for p in other.model.parameters()]
    with pytest.raises(ValueError, match=words):
        pyg_sar.load_checkpoint(tmp_path, other.model, other.optimizer, loader=other.loader)
    assert other.loader.state_dict() == before
    assert all(torch.equal(p, w) for p, w in zip(other.model.parameters(), weights, strict=True))
    assert other.optimizer.state_dict()['state'] == {}


def test_a_checkpoint_without_a_loader_has_no_state_of_one(parts, tmp_path):
    run = SampledRun(parts, str(tmp_path))
    pyg_sar.save_checkpoint(tmp_path, run.model, run.optimizer, epoch=1)
    with pytest.raises(ValueError, match="state of 'loader'"):
        SampledRun(parts, str(tmp_path))
    assert pyg_sar.load_checkpoint(tmp_path, run.model, run.optimizer).epoch == 1
