"""The program of docs/faq.md: a signal to one rank stops all ranks after one epoch."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pages import ROOT, blocks_of
from ranks import run_once
from small_graphs import cut, small_graph
from torch_geometric.nn import SAGEConv

import pyg_sar

EPOCH = 2


def _stopped(root: str, folder: str, who: int) -> tuple[int, int]:
    """The last epoch that a rank computed, and that of the checkpoint."""
    page = (ROOT / 'docs' / 'faq.md').read_text(encoding='utf-8')
    (block,) = [block for block in blocks_of(page) if 'signal' in block.said]
    process = pyg_sar.init()
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(SAGEConv(6, 3).double())
    optimizer = torch.optim.Adam(model.parameters())
    epochs: list[int] = []

    def train() -> None:
        loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epochs.append(len(epochs))
        if epochs[-1] == EPOCH and process.rank == who:
            os.kill(os.getpid(), signal.SIGTERM)

    names: dict[str, Any] = {'first': 0, 'num_epochs': 10, 'train': train, 'process': process}
    names |= {'model': model, 'optimizer': optimizer, 'pyg_sar': pyg_sar, 'torch': torch}
    exec(block.text.replace('run/', folder), names)
    last = pyg_sar.load_checkpoint(folder, model, optimizer)
    assert last is not None
    return epochs[-1], last.epoch


@pytest.mark.parametrize('who', [0, 1])
def test_a_signal_to_one_rank_stops_all(who: int, tmp_path: Path) -> None:
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    assert run_once(_stopped, 2, root, str(tmp_path / 'run'), who) == [(EPOCH, EPOCH)] * 2
