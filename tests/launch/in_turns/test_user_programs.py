"""What users write around a training loop gives in turns what it gives on processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import assert_bits
from few import few
from launch.in_turns.programs import KINDS, NUM_RANKS, Run, in_turns, train
from ranks import run_ranks

import pyg_sar
from pyg_sar.comm import collectives


def saved(folder: str, root: str, num_epochs: int = 3) -> list[Any]:
    """Saves after every epoch, and goes on where a run before has stopped."""
    run = Run(folder, 'dropout')
    last = pyg_sar.load_checkpoint(root, run.model, run.optimizer, run.plateau)
    first = 0 if last is None else last.epoch + 1
    losses = []
    for epoch in range(first, first + num_epochs):
        losses.append(run.epoch())
        run.plateau.step(losses[-1])
        extra = {'losses': losses, 'rows': run.model.module.convs[0].lin_l.weight.detach()}
        pyg_sar.save_checkpoint(
            root, run.model, run.optimizer, epoch=epoch, scheduler=run.plateau, extra=extra
        )
    return [first, losses, run.weights(), run.evaluated()]


def early_stopping(folder: str) -> list[Any]:
    """The best weights come back at the end."""
    run = Run(folder, 'dropout')
    best, bad, state, losses = -1.0, 0, {}, []
    while len(losses) < 6:
        losses.append(run.epoch())
        out = run.evaluated()
        right = (out.argmax(dim=-1) == pyg_sar.local(run.data.y)).sum()
        score = float(collectives.all_reduce_sum(right))
        run.plateau.step(-score)
        if score > best:
            best, bad, state = score, 0, copy.deepcopy(run.model.state_dict())
        else:
            bad += 1
        if bad == 2:
            break
    run.model.load_state_dict(state)
    return [losses, best, run.weights(), run.evaluated()]


def sampled(folder: str, on_batches: bool) -> list[Any]:
    """Trains on batches; evaluates on batches, or on all nodes."""
    run = Run(folder, 'dropout')
    make = partial(pyg_sar.NeighborLoader, run.data, [4, 4, 4], batch_size=32)
    loader = make(input_nodes=run.data.train_mask, shuffle=True)
    found = []
    for _ in range(2):
        run.model.train()
        for batch in loader:
            run.optimizer.zero_grad()
            out = run.model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            run.optimizer.step()
            found.append(loss.item())
        if not on_batches:
            found.append(run.evaluated())
            continue
        run.model.eval()
        with torch.no_grad():
            found += [
                run.model(batch.x, batch.edge_index)[: batch.batch_size].clone()
                for batch in make(input_nodes=~run.data.train_mask)
            ]
    return [found, run.weights()]


def _in_turns(folder: Path, program: Callable[..., Any], *args: Any) -> list[Any]:
    found = in_turns(partial(program, str(folder), *args), folder, NUM_RANKS)
    assert found.figures.evictions > 0
    return found.results


PROGRAMS: dict[str, Any] = {
    'early stopping': (early_stopping,),
    'dropout_seed': (partial(train, dropout_seed=7), 'dropout'),
    'dropout_seed of edges': (partial(train, dropout_seed=7), 'gat dropout'),
    'sampled, evaluated on all nodes': (sampled, False),
    'sampled, evaluated on batches': (sampled, True),
}


@pytest.mark.parametrize('name', few(PROGRAMS))
def test_bits_of_processes(folder: Path, name: str) -> None:
    program, *args = PROGRAMS[name]
    expected = run_ranks(program, NUM_RANKS, str(folder), *args)
    assert_bits(_in_turns(folder, program, *args), expected)


@pytest.mark.parametrize('kind', few(KINDS, every=6))
def test_bits_whatever_is_evicted(folder: Path, kind: str) -> None:
    expected = run_ranks(train, NUM_RANKS, str(folder), kind)
    run = partial(in_turns, partial(train, str(folder), kind), folder, NUM_RANKS)
    whole = run(1 << 40)
    assert_bits(whole.results, expected)
    assert whole.figures.evictions == whole.figures.written == 0
    for budget in (whole.figures.peak // 2, 0):
        found = run(budget)
        assert_bits(found.results, expected)
        assert min(found.figures.evictions, found.figures.written, found.figures.read) > 0
        assert found.figures.peak < whole.figures.peak


def test_a_run_goes_on_in_turns_or_on_processes(folder: Path, tmp_path: Path) -> None:
    """Whoever has written the checkpoint."""
    in_turns = partial(_in_turns, folder, partial(saved, num_epochs=1))
    processes = partial(run_ranks, partial(saved, num_epochs=1), NUM_RANKS, str(folder))
    ours, theirs, mixed = (str(tmp_path / name) for name in ('ours', 'theirs', 'mixed'))
    for epoch in (0, 1):
        expected = processes(theirs)
        assert expected[0][0] == epoch
        assert_bits(in_turns(ours), expected)
        assert_bits((in_turns if epoch else processes)(mixed), expected)
    files = sorted((tmp_path / 'theirs').rglob('*'))
    assert sum(file.is_file() for file in files) > 4
    for file in files:
        twin = tmp_path / 'ours' / file.relative_to(tmp_path / 'theirs')
        assert file.is_dir() or twin.read_bytes() == file.read_bytes(), file.name
