"""A long training run that watches what it holds: memory, files, threads, groups, tensors.

    python tests/numbers/soak.py --epochs 2000 --ranks 2

Every epoch trains and evaluates a model with a linear layer (whose sum over raw features is kept),
attention, batch norm and dropout, with activations computed again in backward. Every seventh epoch
takes edges newly drawn by ``dropout_edge``. What grows from the second to the last quarter is
reported, and is an error.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
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


def soak(root: str, epochs: int, num_samples: int) -> tuple[list[dict[str, float]], list[float]]:
    """What a rank held after every part of the run, and the loss then."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = pyg_sar.DistributedDataParallel(SoakModel(), checkpoint_activations=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples, losses = [], []
    for epoch in range(1, epochs + 1):
        edge_index = data.edge_index
        if epoch % 7 == 0:
            edge_index, _ = dropout_edge(edge_index, 0.2)
        model.train()
        out = model(data.x, edge_index)
        loss = pyg_sar.over_all_nodes.global_mean(
            F.cross_entropy(out, data.y, reduction='none'), data.train_mask
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = (model(data.x, data.edge_index).argmax(-1) == data.y).float()
        pyg_sar.over_all_nodes.global_mean(correct, ~data.train_mask)
        del out, correct, edge_index
        if epoch % (epochs // num_samples) == 0:
            losses.append(loss.item())
            del loss
            samples.append(held())
    return samples, losses


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
        root = partitioned(folder, args.ranks)
        start = time.monotonic()
        found = run_once(soak, args.ranks, root, args.epochs, args.samples, timeout=args.timeout)
        seconds = time.monotonic() - start
    print(f'{args.epochs} epochs on {args.ranks} ranks in {seconds:.0f} s')
    has_grown = False
    for rank, (samples, losses) in enumerate(found):
        print(f'rank {rank}: loss {losses[0]:.3f} to {losses[-1]:.3f}, ', end='')
        print(f'{slope(samples, args.epochs):+.3f} KiB per epoch')
        for key in samples[0]:
            second, last = quarters(samples, key)
            first = samples[0][key]
            print(f'  {key:16} first {first:9.1f}  second quarter {min(second):9.1f} to ', end='')
            print(f'{max(second):9.1f}  last quarter {min(last):9.1f} to {max(last):9.1f}')
        grown = growth(samples)
        has_grown = has_grown or bool(grown)
        print(f'  grown: {grown or "nothing"}')
    return int(has_grown)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--epochs', type=int, default=2000)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--samples', type=int, default=20, help='how often what is held is counted')
    parser.add_argument('--timeout', type=float, default=3600, help='seconds')
    sys.exit(main(parser.parse_args()))
