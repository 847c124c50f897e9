"""Ranks in turn give the bits that processes give, whatever was evicted meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from launch.in_turns.programs import KINDS, NUM_RANKS, train, write_parts
from ranks import run_ranks

from pyg_sar.launch.in_turns.run import InTurns, play


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp('parts')
    write_parts(found)
    return found


def _in_turns(folder: Path, kind: str, memory: int) -> InTurns:
    program = partial(train, str(folder), kind)
    return play(program, NUM_RANKS, memory=memory, spill=folder, least=256)


def _check_equal(ours: list[Any], theirs: list[Any]) -> None:
    for (losses, *tensors), (their_losses, *their_tensors) in zip(ours, theirs, strict=True):
        assert losses == their_losses
        for own, others in zip(tensors, their_tensors, strict=True):
            assert len(own) == len(others)
            assert all(map(torch.equal, own, others))


@pytest.mark.parametrize('kind', few(KINDS, every=6))
def test_bits_of_processes(folder: Path, kind: str) -> None:
    expected = run_ranks(train, NUM_RANKS, str(folder), kind)
    whole = _in_turns(folder, kind, 1 << 40)
    _check_equal(whole.results, expected)
    assert whole.figures.evictions == whole.figures.written == 0
    for budget in (whole.figures.peak // 2, 0):
        found = _in_turns(folder, kind, budget)
        _check_equal(found.results, expected)
        assert found.figures.evictions > 0
        assert found.figures.written > 0
        assert found.figures.read > 0
        assert found.figures.peak < whole.figures.peak
