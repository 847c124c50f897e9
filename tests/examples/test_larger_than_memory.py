"""The example of ranks in turn: its losses are those of one process that holds everything."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import torch
from example_programs import EXAMPLES, example, run
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_sar.partition.partition_graph import partition_graph


def _graph() -> Data:
    """8,000 nodes and 120,000 edges."""
    torch.manual_seed(0)
    y = torch.randint(8, (8000,))
    x = torch.nn.functional.one_hot(y, 32) + torch.randn(8000, 32)
    edge_index = to_undirected(torch.randint(8000, (2, 60_000)))
    return Data(x=x, edge_index=edge_index, y=y, train_mask=torch.rand(8000) < 0.6, num_classes=8)


@pytest.mark.slow
def test_losses_are_those_of_one_process(tmp_path: Path) -> None:
    root = tmp_path / 'parts'
    partition_graph(_graph(), 2, root)
    options = ['--memory', '1MB', '--spill', tmp_path, '--hidden', 64, '--epochs', 3]
    text = run(EXAMPLES / 'larger_than_memory.py', root, *options)
    args = argparse.Namespace(root=root, hidden=64, epochs=3)
    wanted = torch.tensor(example('larger_than_memory').train(args))
    found = torch.tensor([float(loss) for loss in re.findall(r'loss (\S+)', text)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-4)
    figures = re.search(r'([0-9.]+) MB written, ([0-9.]+) MB read', text)
    assert figures is not None
    assert min(map(float, figures.groups())) > 1
