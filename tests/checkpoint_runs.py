"""A small training run that writes checkpoints, for the tests of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.nn.models import GraphSAGE

import pyg_sar


class Net(torch.nn.Module):
    """Convs on two paths, a norm with buffers, and dropouts on rows and on edges."""

    def __init__(self, *, dropout: float = 0.0, hidden: int = 8) -> None:
        super().__init__()
        self.first = SAGEConv(6, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden)
        self.second = GATConv(hidden, 3, heads=2, concat=False, dropout=dropout)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.first(x, edge_index)).relu()
        h = F.dropout(h, self.dropout, self.training)
        return self.second(h, edge_index)


class Run:
    """One epoch after another, in float64; or in float32, with a layer narrower than its sum."""

    def __init__(
        self, data: Data, *, dropout: float = 0.0, plain: bool = False, narrow: bool = False
    ) -> None:
        self.data, self.dtype = data, torch.float32 if narrow else torch.float64
        torch.manual_seed(4)
        net = GraphSAGE(6, 32, 3, 3, norm='batch_norm') if narrow else Net(dropout=dropout)
        model = net.to(data.x.device, self.dtype)
        self.model = model if plain else pyg_sar.DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.8)
        torch.manual_seed(5)

    def epoch(self) -> float:
        out = self.model(self.data.x.to(self.dtype), self.data.edge_index)
        mask = self.data.train_mask
        loss = F.cross_entropy(out[mask], self.data.y[mask])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def save(self, root: str | Path, epoch: int, **kwargs: Any) -> Path:
        return pyg_sar.save_checkpoint(
            root, self.model, self.optimizer, epoch=epoch, scheduler=self.scheduler, **kwargs
        )

    def load(self, root: str | Path) -> Any:
        return pyg_sar.load_checkpoint(root, self.model, self.optimizer, self.scheduler)


def losses(parts: str, num_epochs: int, *, device: str = 'cpu', **options: Any) -> list[float]:
    """Of a run that nothing interrupts and that writes nothing."""
    run = Run(pyg_sar.load_shard(parts).to(device), **options)
    return [run.epoch() for _ in range(num_epochs)]


def resumed(
    parts: str,
    root: str,
    num_epochs: int,
    *,
    beats: str | None = None,
    device: str = 'cpu',
    **options: Any,
) -> list[float]:
    """Of a run from the last checkpoint on, with a new one after every epoch.

    Args:
        parts: The partition folder.
        root: The folder of the checkpoints.
        num_epochs: Where the run ends.
        beats: A file that rank 0 makes longer by a byte at the start and after every epoch.
        device: Where it runs.
        **options: Of the run.
    """
    run = Run(pyg_sar.load_shard(parts).to(device), **options)
    last = run.load(root)
    found = [] if last is None else list(last.extra['losses'])
    assert len(found) == (0 if last is None else last.epoch)
    _beat(beats)
    while len(found) < num_epochs:
        found.append(run.epoch())
        run.save(root, len(found), extra={'losses': found})
        _beat(beats)
    return found


def _beat(path: str | None) -> None:
    if path is not None and pyg_sar.comm.ranks.rank() == 0:
        with open(path, 'ab') as file:
            file.write(b'.')
