"""A long run, and many models one after another, hold no more in the end than in the middle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import run_once
from soak import SoakModel, growth, held, partitioned, slope, soak

import pyg_sar


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return partitioned(str(tmp_path_factory.mktemp('soak')), 2)


@pytest.mark.bench
def test_nothing_grows(root: str) -> None:
    """The program for longer runs: ``python tests/numbers/soak.py``."""
    epochs = 280
    for samples, losses in run_once(soak, 2, root, epochs, 20, timeout=400):
        assert losses[-1] < 0.5 * losses[0]
        assert not growth(samples), (growth(samples), slope(samples, epochs))


OPTIONS: dict[str, dict[str, Any]] = {
    'default': {},
    'all': {'timeout': 60, 'checkpoint_activations': True, 'mode': 'sequential_no_remat'},
}


def _models(root: str, options: dict[str, Any], number: int) -> list[dict[str, float]]:
    """What is held after models that train two epochs each and are dropped."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    samples = []
    for i in range(1, number + 1):
        model = pyg_sar.DistributedDataParallel(SoakModel(), **options)
        for _ in range(2):
            out = model(data.x, data.edge_index)
            each = F.cross_entropy(out, data.y, reduction='none')
            pyg_sar.over_all_nodes.global_mean(each, data.train_mask).backward()
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)
        del model, out, each
        if i % max(number // 20, 1) == 0:
            samples.append(held())
    return samples


def _check(root: str, options: dict[str, Any], number: int) -> None:
    for samples in run_once(_models, 2, root, options, number, timeout=400):
        found = growth(samples)
        if number < 100:
            found.pop('MiB', None)  # too short for it
        assert not found


@pytest.mark.slow
def test_dropped_models(root: str) -> None:
    _check(root, OPTIONS['all'], 8)


@pytest.mark.bench
@pytest.mark.parametrize('name', OPTIONS)
def test_a_hundred_dropped_models(root: str, name: str) -> None:
    _check(root, OPTIONS[name], 100)
