"""The example of ranks in turn: its losses are those of one process that holds everything."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import torch
from example_programs import EXAMPLES, example, run

from pyg_sar.partition.partition_graph import partition_graph


@pytest.mark.slow
def test_losses_are_those_of_one_process(tmp_path: Path) -> None:
    root = tmp_path / 'parts'
    partition_graph('synthetic:8000,60000', 2, root)
    options = ['--memory', '1MB', '--spill', tmp_path, '--hidden', 64, '--epochs', 3]
    text = run(EXAMPLES / 'larger_than_memory.py', root, *options)
    args = argparse.Namespace(root=root, hidden=64, epochs=3)
    wanted = torch.tensor(example('larger_than_memory').train(args))
    found = torch.tensor([float(loss) for loss in re.findall(r'loss (\S+)', text)])
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-4)
    figures = re.search(r'([0-9.]+) MB written, ([0-9.]+) MB read', text)
    assert figures is not None
    assert min(map(float, figures.groups())) > 1
