"""A long run, and many models one after another, hold no more in the end than in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import run_once
from soak import Run, SoakModel, growth, held, partitioned, slope, survived

import pyg_sar


@pytest.mark.bench
@pytest.mark.parametrize('num_ranks', [1, 3])
@pytest.mark.parametrize('data', ['rows', 'sampled'])
def test_nothing_grows(tmp_path: Path, data: str, num_ranks: int) -> None:
    """The program for longer runs: ``python tests/numbers/soak.py``."""
    run = Run(partitioned(str(tmp_path), num_ranks), data, epochs=280)
    for samples, losses in survived(run, num_ranks, timeout=600):
        assert len(samples) == 15  # those of the first quarter, before the kill, are not done again
        assert losses[-1] < losses[0]
        assert not growth(samples), (growth(samples), slope(samples, run.epochs))


OPTIONS: dict[str, dict[str, Any]] = {
    'default': {},
    'all': {'timeout': 60, 'mode': 'sequential_no_remat'},
}


def _models(root: str, options: dict[str, Any], number: int) -> list[dict[str, float]]:
    """What is held after models that train two epochs each and are dropped."""
    data = pyg_sar.load_shard(root)
    samples = []
    for i in range(1, number + 1):
        model = pyg_sar.DistributedDataParallel(SoakModel(), **options)
        for _ in range(2):
            out = model(data.x, data.edge_index)
            F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)
        del model, out
        if i % max(number // 20, 1) == 0:
            samples.append(held())
    return samples


@pytest.mark.parametrize(
    ('name', 'number'),
    [
        pytest.param('all', 8, marks=pytest.mark.slow),
        pytest.param('all', 100, marks=pytest.mark.bench),
        pytest.param('default', 100, marks=pytest.mark.bench),
    ],
)
def test_dropped_models(tmp_path: Path, name: str, number: int) -> None:
    root = partitioned(str(tmp_path), 2)
    for samples in run_once(_models, 2, root, OPTIONS[name], number, timeout=400):
        found = growth(samples)
        if number < 100:
            found.pop('MiB', None)  # too short for it
        assert not found
