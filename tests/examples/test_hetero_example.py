"""The heterogeneous example: the losses of plain PyG, and it runs as its users run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from example_programs import EXAMPLES, example, run, torchrun
from few import few
from hetero_graphs import assignment, hetero_graph
from ranks import run_ranks
from torch_geometric.data import HeteroData

import pyg_sar

EPOCHS = 4


def _graph() -> HeteroData:
    """With validation nodes; lonely nodes, which no relation reaches, stay with the others."""
    data = hetero_graph()
    data['paper'].val_mask = ~data['paper'].train_mask
    data['paper'].y[::7] = -1
    data['paper'].train_mask[::7] = False
    data['lonely'].x = data['lonely'].x.double()
    return data


def _model(program: Any, data: HeteroData) -> torch.nn.Module:
    torch.manual_seed(0)
    widths = {key: x.size(1) for key, x in program.features(data).items()}
    return program.RGCN(widths, data.edge_types, 8, 3).double()


def _losses(root: str) -> list[float]:
    program, data = example('hetero_rgcn'), pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_model(program, data))
    return [loss.item() for loss, _ in program.train(model, data, 'paper', EPOCHS)]


@pytest.mark.slow
@pytest.mark.parametrize('world_size', few([3, 1, 2]))
def test_losses_equal_plain_pyg(tmp_path: Path, world_size: int) -> None:
    program, data = example('hetero_rgcn'), _graph()
    model = _model(program, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    expected = []
    for _ in range(EPOCHS):
        mask = data['paper'].train_mask
        out = model(program.features(data), data.edge_index_dict, 'paper')
        loss = F.cross_entropy(out[mask], data['paper'].y[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert expected[-1] < expected[0]
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=assignment(3))
    root = tmp_path / 'parts'
    if world_size == 2:  # as many parts as ranks, or a multiple
        root = tmp_path / 'metis'
        pyg_sar.partition_graph(data, 2, root)
    for losses in run_ranks(_losses, world_size, str(root)):
        assert losses == pytest.approx(expected, abs=1e-10, rel=0)


@pytest.mark.bench
def test_as_a_program_on_one_and_two_processes(tmp_path: Path) -> None:
    data = _graph()
    for store in data.node_stores:
        if 'x' in store:
            store.x = store.x.float()
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts')
    options = [
        EXAMPLES / 'hetero_rgcn.py',
        tmp_path / 'parts',
        '--target',
        'paper',
        '--hidden',
        8,
        '--epochs',
        3,
    ]
    found = []
    for output in (run(*options), run(*torchrun(2), *options)):
        pattern = r'epoch +(\d)  loss (\d\.\d{6})  accuracy (\d\.\d{4})\n'
        lines = re.findall(pattern, output)
        assert [line[0] for line in lines] == ['1', '2', '3']
        found.append(torch.tensor([[float(number) for number in line] for line in lines]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
