"""The same seed gives the same bits, in processes started anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deterministic import EPOCHS, MODELS
from soak import soak_graph

import pyg_sar

PROGRAM = Path(__file__).with_name('deterministic.py')
WORLD_SIZE = 3


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp('deterministic') / 'parts'
    pyg_sar.partition_graph(soak_graph(100), WORLD_SIZE, folder)
    return folder


def _run(root: Path, folder: Path, models: str, modes: str, threads: int) -> list[list[str]]:
    """What every rank printed."""
    folder.mkdir()
    env = {
        **os.environ,
        'PYTHONPATH': str(Path(pyg_sar.__file__).parents[1]),
        'OMP_NUM_THREADS': str(threads),
        'OMP_WAIT_POLICY': 'PASSIVE',  # more threads than cores, here and there
        'GLOO_SOCKET_IFNAME': 'lo' if sys.platform == 'linux' else '',
    }
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, PROGRAM, root, folder),
                *map(str, (rank, WORLD_SIZE, models, modes, threads)),
            ],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * WORLD_SIZE
    return [output.splitlines() for output in outputs]


def _check(root: Path, tmp_path: Path, models: str, modes: str, threads: int) -> None:
    first, second = (_run(root, tmp_path / name, models, modes, threads) for name in ('a', 'b'))
    assert first == second
    assert first[0] == first[1] == first[2]
    lines = [line.split() for line in first[0]]
    assert len(lines) == len(models.split(',')) * len(modes.split(','))
    for _, _, *losses, _ in lines:
        assert len(set(losses)) == EPOCHS  # it trains


@pytest.mark.bench
def test_same_bits(root: Path, tmp_path: Path) -> None:
    _check(root, tmp_path, ','.join(MODELS), 'sequential,sequential_no_remat,one_shot', 1)


@pytest.mark.bench
def test_same_bits_on_two_threads(root: Path, tmp_path: Path) -> None:
    _check(root, tmp_path, 'attention', 'sequential', 2)
