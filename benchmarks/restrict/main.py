"""What restricted layers save when few nodes are labelled: full and restricted epochs in turn.

Run under torchrun on a partition folder; rank 0 writes results.json beside this file and prints
the table of README.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.rows.restrict import RestrictedLayers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from processors import processor  # noqa: E402


class SAGE(torch.nn.Module):
    """Layers of GraphSAGE on a graph or on restricted layers."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(SAGEConv(*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor, graph: Tensor | RestrictedLayers) -> Tensor:
        for number, conv in enumerate(self.convs):
            x = x.relu() if number else x
            if isinstance(graph, RestrictedLayers):
                layer = graph[number]
                x = conv((x, x[layer.dst]), layer.edge_index)
            else:
                x = conv(x, graph)
        return x


def main() -> None:
    args = _parse()
    dist.init_process_group('gloo')
    torch.set_num_threads(1)
    data = pyg_sar.load_shard(args.shards)
    results = [measure(data, fraction, args) for fraction in args.fractions]
    if dist.get_rank() == 0:
        settings = {k: v for k, v in vars(args).items() if k != 'shards'}
        report = {
            'processor': processor(),
            'settings': settings,
            'processes': dist.get_world_size(),
            'results': results,
        }
        (HERE / 'results.json').write_text(json.dumps(report, indent=1) + '\n')
        print_table(results)
    dist.destroy_process_group()


def measure(data: Data, fraction: float, args: argparse.Namespace) -> dict[str, Any]:
    """Trains on a share of the labels, the same for all numbers of processes."""
    num_nodes = data.num_nodes
    generator = torch.Generator().manual_seed(args.seed)
    chosen = torch.rand(num_nodes, generator=generator) < fraction
    train_mask = (data.y >= 0) & chosen  # -1: without a label

    seconds, layers = _seconds(lambda: pyg_sar.restrict(data, train_mask, args.layers))
    torch.manual_seed(args.seed)
    widths = [data.num_features, *[args.hidden] * (args.layers - 1), data.num_classes]
    plain = SAGE(widths)
    epochs = {
        'full': _trainer(copy.deepcopy(plain), data.x, data.edge_index, data.y, train_mask, args),
        'restricted': _trainer(
            plain, data.x[layers.input_nodes], layers, data.y[layers.output_nodes], None, args
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in epochs}
    losses: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(1 + args.epochs):
        for name, epoch in epochs.items():  # in turn, so that both see the same load
            elapsed, loss = _seconds(epoch)
            losses[name].append(loss)
            if number:  # the first one makes plans and buffers
                times[name].append(elapsed)
    pairs = list(pairwise(widths))
    dense = sum(layer.num_dst * i * o for layer, (i, o) in zip(layers, pairs, strict=True))
    return {
        'fraction': fraction,
        'labels': int(train_mask.sum()),
        'seconds': {name: _summary(values) for name, values in times.items()},
        'restrict_seconds': seconds,
        'losses': losses,
        'edges': {
            'full': data.edge_index.size(1) * args.layers,
            'restricted': sum(layer.edges.numel() for layer in layers),
        },
        'edges_per_layer': [layer.edges.numel() for layer in layers],
        'multiplications': {
            'full': num_nodes * sum(i * o for i, o in pairs) * 2,
            'restricted': dense * 2,
        },
    }


def _trainer(
    model: SAGE,
    x: Tensor,
    graph: Tensor | RestrictedLayers,
    y: Tensor,
    mask: Tensor | None,
    args: argparse.Namespace,
) -> Callable[[], float]:
    parallel = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    def epoch() -> float:
        out = parallel(x, graph)
        loss = F.cross_entropy(*((out, y) if mask is None else (out[mask], y[mask])))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long all ranks take together, and what the work gave."""
    dist.barrier()
    start = time.perf_counter()
    result = work()
    dist.barrier()
    return time.perf_counter() - start, result


def _summary(values: list[float]) -> dict[str, float]:
    return {'median': statistics.median(values), 'min': min(values), 'max': max(values)}


def print_table(results: list[dict[str, Any]]) -> None:
    print(f'Processor: {processor()}\n')
    print('| labels | edges | multiplications ', end='')
    print('| s, full | s, restricted | ratio | s of `restrict()` |')
    print('|---|---|---|---|---|---|---|')
    for r in results:
        shares = [r[k]['restricted'] / r[k]['full'] for k in ('edges', 'multiplications')]
        full, restricted = r['seconds']['full'], r['seconds']['restricted']
        cells = [
            f'{r["labels"]:,} ({r["fraction"]:.1%})',
            *(f'{share:.3f}' for share in shares),
            *(f'{s["median"]:.3f}' for s in (full, restricted)),
            f'{restricted["median"] / full["median"]:.2f}',
            f'{r["restrict_seconds"]:.2f}',
        ]
        print(f'| {" | ".join(cells)} |')
    pairs = [zip(*r['losses'].values(), strict=True) for r in results]
    worst = max(abs(a - b) / abs(a) for losses in pairs for a, b in losses)
    print(f'largest relative difference of the losses: {worst:.1e}')
    print(f'load of the last minute: {os.getloadavg()[0]:.1f}')


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('shards', help='a partition folder with x and y')
    parser.add_argument('--fractions', type=float, nargs='+', default=[0.001, 0.01, 0.1, 1.0])
    parser.add_argument('--hidden', type=int, default=128)
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=7)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


if __name__ == '__main__':
    main()
