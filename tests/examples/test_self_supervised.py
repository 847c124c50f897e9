"""Methods without labels have the losses of plain PyG on ranks: 'one line is written for ranks'."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from example_programs import example
from ranks import run_ranks  # threads would share one generator
from small_graphs import cut, small_graph

import pyg_sar


def _losses(root: str | None) -> dict[str, list[float]]:
    program = example('self_supervised')
    data = small_graph() if root is None else pyg_sar.load_shard(root)
    losses: dict[str, list[float]] = {}
    for name, method in program.METHODS.items():
        torch.manual_seed(0)
        model = program.Model(6, 8).double()
        if root is not None:
            model = pyg_sar.DistributedDataParallel(model)
        slow = copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses[name] = []
        for _ in range(3):
            loss = method(data, model, slow)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    return losses


@pytest.mark.slow
def test_losses_are_those_of_plain_pyg(tmp_path: Path) -> None:
    want = _losses(None)
    for got in run_ranks(_losses, 3, str(cut(small_graph(), 3, tmp_path / 'parts'))):
        for name, losses in want.items():
            assert got[name] == pytest.approx(losses, abs=1e-10, rel=0), name
