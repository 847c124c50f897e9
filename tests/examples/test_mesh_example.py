"""The example of a mesh: its losses fall, and are those of plain PyG on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from example_programs import EXAMPLES, example, run, torchrun
from ranks import run_as_threads

import pyg_sar

SIZE = 7


def _losses(root: str | None) -> list[float]:
    mesh = example('mesh')
    torch.manual_seed(0)
    model = mesh.MeshGraphNet(8, 3).double()
    data: Any = mesh.drawn(SIZE) if root is None else pyg_sar.load_shard(root)
    if root is not None:
        model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pos, edge_attr, losses = data.pos.double(), data.edge_attr.double(), []
    for step in range(4):
        now, then = mesh.field(pos, 0.1 * step), mesh.field(pos, 0.1 * step + 0.1)
        loss = F.mse_loss(model(now, data.edge_index, edge_attr), then - now)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_losses_of_plain_pyg(tmp_path: Path) -> None:
    pyg_sar.partition_graph(example('mesh').drawn(SIZE), 3, tmp_path, method='random')
    want = _losses(None)
    assert want[-1] < want[0]
    for found in run_as_threads(_losses, 3, str(tmp_path)):
        assert found == pytest.approx(want, abs=1e-9, rel=0)


@pytest.mark.slow
def test_it_runs_as_a_program(tmp_path: Path) -> None:
    command = [EXAMPLES / 'mesh.py', tmp_path / 'parts']
    run(*command, '--draw', 12, '--num-parts', 2)
    options = ['--hidden', 8, '--layers', 2, '--steps', 2]
    one, two = (run(*start, *command, *options).splitlines() for start in ([], torchrun(2)))
    assert [line.split()[:2] for line in one] == [['step', '1'], ['step', '2'], ['peak', 'memory']]
    assert one[:2] == two[:2]
