"""200 epochs in float32 stay within 1e-3 of one-process PyG, at every epoch."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from float32_training import MODELS, cut, difference, plain
from ranks import run_ranks
from soak import NUM_CLASSES, soak_graph

import pyg_sar

EPOCHS, BOUND = 200, 1e-3


@functools.cache
def _expected(name: str) -> list[float]:
    return plain(name, soak_graph(60), NUM_CLASSES, EPOCHS)


@pytest.mark.bench
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('world_size', [2, 4])
def test_losses(tmp_path: Path, name: str, world_size: int) -> None:
    """Absolute and relative."""
    pyg_sar.partition_graph(soak_graph(60), world_size, tmp_path / 'parts')
    args = name, str(tmp_path / 'parts'), NUM_CLASSES, EPOCHS
    expected = _expected(name)
    assert expected[-1] < 0.5 * expected[0]
    for losses in run_ranks(cut, world_size, *args, timeout=400):
        absolute, relative = difference(losses, expected)
        assert absolute <= BOUND
        assert relative <= BOUND
