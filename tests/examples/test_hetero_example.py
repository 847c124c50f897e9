"""The heterogeneous example: the losses of plain PyG, and it runs as its users run it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from few import few
from hetero_graphs import assignment, hetero_graph
from ranks import run_ranks
from torch_geometric.data import HeteroData

import pyg_sar

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / 'examples' / 'hetero_rgcn.py'
EPOCHS = 4


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location('hetero_rgcn', EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _graph() -> HeteroData:
    """With validation nodes; lonely nodes, which no relation reaches, stay with the others."""
    data = hetero_graph()
    data['paper'].val_mask = ~data['paper'].train_mask
    data['paper'].y[::7] = -1
    data['paper'].train_mask[::7] = False
    data['lonely'].x = data['lonely'].x.double()
    return data


def _model(example: ModuleType, data: HeteroData) -> torch.nn.Module:
    torch.manual_seed(0)
    widths = {key: x.size(1) for key, x in example.features(data).items()}
    return example.RGCN(widths, data.edge_types, 8, 3).double()


def _losses(root: str) -> list[float]:
    example, data = _example(), pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_model(example, data))
    return [loss.item() for loss, _ in example.train(model, data, 'paper', EPOCHS)]


@pytest.mark.slow
@pytest.mark.parametrize('world_size', few([3, 1, 2]))
def test_losses_equal_plain_pyg(tmp_path: Path, world_size: int) -> None:
    example, data = _example(), _graph()
    model = _model(example, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    expected = []
    for _ in range(EPOCHS):
        mask = data['paper'].train_mask
        out = model(example.features(data), data.edge_index_dict, 'paper')
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


def _run(*command: object) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.bench
def test_as_a_program_on_one_and_two_processes(tmp_path: Path) -> None:
    data = _graph()
    for store in data.node_stores:
        if 'x' in store:
            store.x = store.x.float()
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts')
    options = [EXAMPLE, tmp_path / 'parts', '--target', 'paper', '--hidden', 8, '--epochs', 3]
    torchrun = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', 2]
    found = []
    for output in (_run(*options), _run(*torchrun, *options)):
        pattern = r'epoch +(\d)  loss (\d\.\d{6})  accuracy (\d\.\d{4})\n'
        lines = re.findall(pattern, output)
        assert [line[0] for line in lines] == ['1', '2', '3']
        found.append(torch.tensor([[float(number) for number in line] for line in lines]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
