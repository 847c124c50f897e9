"""The heterogeneous example runs as its users run it, the same on one and two processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from example_programs import EXAMPLES, run, torchrun
from hetero_graphs import hetero_graph
from torch_geometric.data import HeteroData

import pyg_sar


def _graph() -> HeteroData:
    """With validation nodes; lonely nodes, which no relation reaches, stay with the others."""
    data = hetero_graph()
    data['paper'].val_mask = ~data['paper'].train_mask
    data['paper'].y[::7] = -1
    data['paper'].train_mask[::7] = False
    data['lonely'].x = data['lonely'].x.double()
    return data


@pytest.mark.slow
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
