"""A long training run that watches what it holds: memory, files, threads, groups, tensors.

    python tests/numbers/soak.py --epochs 2000 --ranks 2 --data rows

Every epoch trains and evaluates a model with a linear layer (whose sum over raw features is kept),
attention, batch norm and dropout, with activations computed again in backward. Every seventh epoch
takes edges newly drawn by ``dropout_edge``, and a checkpoint is written at times. All ranks are
killed after a quarter; the run goes on from its last checkpoint. What grows from the second to the
last quarter of what follows is reported, and is an error.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_once
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import dropout_edge, stochastic_blockmodel_graph

import pyg_sar

NUM_FEATURES, HIDDEN, NUM_CLASSES = 16, 16, 4
MIB = 1 << 20

RSS_SLACK = 1.0
"""MiB that the mean of a quarter may lie above that of another: what the allocator rounds."""


class SoakModel(torch.nn.Module):
    """A sum, attention and a normalised sum, with batch norm and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SAGEConv(NUM_FEATURES, HIDDEN)
        self.second = GATConv(HIDDEN, HIDDEN // 2, heads=2, dropout=0.2)
        self.third = GCNConv(HIDDEN, NUM_CLASSES)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(HIDDEN) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.norms[0](self.first(x, edge_index)).relu(), 0.3, self.training)
        x = F.dropout(self.norms[1](self.second(x, edge_index)).relu(), 0.3, self.training)
        return self.third(x, edge_index)


def soak_graph(size: int = 150) -> Data:
    """Four communities of `size` nodes that carry the labels."""
    torch.manual_seed(1)
    probabilities = torch.full((4, 4), 0.6 / size) + 9 / size * torch.eye(4)
    y = torch.arange(4 * size) // size
    return Data(
        x=torch.randn(4 * size, NUM_FEATURES) + 0.5 * F.one_hot(y, NUM_FEATURES),
        edge_index=stochastic_blockmodel_graph([size] * 4, probabilities, directed=False),
        y=y,
        train_mask=torch.rand(4 * size) < 0.5,
    )


def held() -> dict[str, float]:
    """What this process holds at the moment, after a garbage collection."""
    gc.collect()
    gc.collect()  # what a C++ graph held until the first one
    objects = gc.get_objects()
    kinds = [type(each) for each in objects]
    tensors = sum(issubclass(kind, torch.Tensor) for kind in kinds)
    ours = sum(str(kind.__module__).startswith('pyg_sar.') for kind in kinds)
    total = len(objects)
    del objects
    status = Path('/proc/self/status').read_text()
    return {
        'MiB': int(Path('/proc/self/statm').read_text().split()[1]) * 4096 / MIB,
        'files': len(os.listdir('/proc/self/fd')),
        'threads': int(status.split('Threads:')[1].split()[0]),
        'groups': len(dist.distributed_c10d._world.pg_map),
        'tensors': tensors,
        'pyg_sar objects': ours,
        'objects': total,
    }


@dataclass(frozen=True)
class Run:
    """A run: its shards, what it trains on, and how long.

    `data` is ``'rows'`` (a plain program) or ``'sampled'``.
    """

    root: str
    data: str
    epochs: int
    num_samples: int = 20
    num_killed_at: int | None = None


def _losses(run: Run, data: Data, model: torch.nn.Module, loader: Any, epoch: int) -> Iterator[Any]:
    """The losses of an epoch, one a step."""
    if run.data == 'sampled':
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            each = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
            yield pyg_sar.loader.mean_of_batches(each)
        return
    edge_index = dropout_edge(data.edge_index, 0.2)[0] if epoch % 7 == 0 else data.edge_index
    each = F.cross_entropy(model(data.x, edge_index), data.y, reduction='none')
    yield each[data.train_mask].mean()


def soak(run: Run) -> tuple[list[dict[str, float]], list[float]]:
    """What a rank held after every part of the run, and the loss then."""
    data = pyg_sar.load_shard(run.root)
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(SoakModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = None
    if run.data == 'sampled':
        loader = pyg_sar.NeighborLoader(data, [5, 5, 5], data.train_mask, batch_size=64, seed=1)
    kept = Path(run.root).with_suffix('.run')
    last = pyg_sar.load_checkpoint(kept, model, optimizer)
    samples, losses = [], []
    for epoch in range(1 if last is None else last.epoch + 1, run.epochs + 1):
        model.train()
        for loss in _losses(run, data, model, loader, epoch):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            is_right = model(data.x, data.edge_index).argmax(-1) == data.y
        is_right[~data.train_mask].float().mean()
        del is_right
        if epoch % (run.epochs // run.num_samples) == 0:
            losses.append(loss.item())
            del loss
            pyg_sar.save_checkpoint(kept, model, optimizer, epoch=epoch)
            samples.append(held())
        if epoch == run.num_killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
    return samples, losses


def survived(run: Run, num_ranks: int, timeout: float) -> list[Any]:
    """What a run gives that is killed after a quarter and goes on."""
    killed = replace(run, num_killed_at=run.epochs // 4 + 1)
    run_once(soak, num_ranks, killed, timeout=timeout, may_die=range(num_ranks))
    return run_once(soak, num_ranks, run, timeout=timeout)


def quarters(samples: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    """The second and the last quarter of a run."""
    values, n = [sample[key] for sample in samples], len(samples)
    return values[n // 4 : n // 2], values[3 * n // 4 :]


def growth(samples: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """What is more in the last quarter than in the second: both figures."""
    found = {}
    for key in samples[0]:
        second, last = quarters(samples, key)
        if key == 'MiB':
            grown, figures = mean(last) > mean(second) + RSS_SLACK, (mean(second), mean(last))
        else:
            grown, figures = max(last) > max(second), (max(second), max(last))
        if grown:
            found[key] = figures
    return found


def slope(samples: list[dict[str, float]], epochs: int) -> float:
    """KiB of memory per epoch over the last three quarters, by least squares."""
    values = torch.tensor([sample['MiB'] for sample in samples]).double()[len(samples) // 4 :]
    steps = torch.arange(len(values)).double() * epochs / len(samples)
    steps = steps - steps.mean()
    return float((steps * values).sum() / steps.square().sum() * 1024)


def partitioned(folder: str, num_parts: int) -> str:
    """The soak graph in a new folder."""
    root = str(Path(folder) / f'parts{num_parts}')
    pyg_sar.partition_graph(soak_graph(), num_parts, root)
    return root


def main(args: Any) -> int:
    """Runs it and prints a table; 1 if anything has grown."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(partitioned(folder, args.ranks), args.data, args.epochs)
        start = time.monotonic()
        found = survived(run, args.ranks, timeout=3600)
        seconds = time.monotonic() - start
    print(f'{args.epochs} epochs on {args.ranks} ranks in {seconds:.0f} s')
    for rank, (samples, losses) in enumerate(found):
        per_epoch = slope(samples, args.epochs)
        print(
            f'rank {rank}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {per_epoch:+.3f} KiB per epoch'
        )
        for key, first in samples[0].items():
            second, last = ([min(q), max(q)] for q in quarters(samples, key))
            print(f'  {key}: first {first:.1f}, second quarter {second}, last quarter {last}')
        print(f'  grown: {growth(samples) or "nothing"}')
    return int(any(growth(samples) for samples, _ in found))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--epochs', type=int, default=2000)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--data', choices=('rows', 'sampled'), default='rows')
    sys.exit(main(parser.parse_args()))
