"""What training loses when rows travel in a 16-bit dtype: the same training with each of them.

Run under torchrun on a partition folder, or on a .pt file with a PyG Data, which is then cut into
as many parts as there are processes. Rank 0 adds the graph to results.json beside this file and
prints its rows of the table of README.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_sar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from processors import processor  # noqa: E402

SETS = ('train', 'val', 'test')
DTYPES = {'float32': None, 'bfloat16': torch.bfloat16}
OTHER_SEED = 'float32, other seed'  # how much of a difference is chance


def main() -> None:
    args = _parse()
    dist.init_process_group('gloo')
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = pyg_sar.load_shard(_parts(args, folder))
        results = measure(data, args)
    if dist.get_rank() == 0:
        path = HERE / 'results.json'
        report = json.loads(path.read_text()) if path.exists() else {}
        report[args.name] = results
        path.write_text(json.dumps(report, indent=1) + '\n')
        print_rows(args.name, results)
    dist.destroy_process_group()


def _parts(args: argparse.Namespace, folder: str) -> str:
    """The partition folder: the given one, or one made by rank 0 from a graph."""
    if not args.graph.endswith('.pt'):
        return str(args.graph)
    where = [folder]
    dist.broadcast_object_list(where)
    if dist.get_rank() == 0:
        data = torch.load(args.graph, weights_only=False)
        split = None if 'train_mask' in data else (0.6, 0.2, 0.2)
        parts = f'{where[0]}/parts'
        pyg_sar.partition_graph(data, dist.get_world_size(), parts, method=args.method, split=split)
    dist.barrier()
    return f'{where[0]}/parts'


class Training:
    """One training with its own dtype, and what it has measured so far."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None, lr: float) -> None:
        self.model = pyg_sar.DistributedDataParallel(model, exchange_dtype=dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.bytes_sent = 0
        self.first_gradients: list[Tensor] = []

    def epoch(self, data: Data) -> None:
        dist.barrier()
        start = time.perf_counter()
        with _counting(self._count):
            out = self.model(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
            self.optimizer.zero_grad()
            loss.backward()
        if not self.first_gradients:
            self.first_gradients = [p.grad.clone() for p in self.model.parameters()]
        self.optimizer.step()
        self.losses.append(loss.item())
        dist.barrier()
        self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def accuracies(self, data: Data) -> dict[str, float]:
        # Norms by the statistics of all nodes, as in training: running ones lag behind.
        correct = (self.model(data.x, data.edge_index).argmax(dim=-1) == data.y).float()
        return {s: correct[data[f'{s}_mask']].mean().item() for s in SETS}

    def _count(self, num_bytes: int) -> None:
        self.bytes_sent += num_bytes


@contextmanager
def _counting(count: Callable[[int], None]) -> Iterator[None]:
    """Tells the bytes of rows that this rank sends while it lasts."""
    exchange = dist.batch_isend_irecv

    def counted(ops: list[dist.P2POp]) -> list[dist.Work]:
        sent = [op.tensor for op in ops if op.op is dist.isend]
        count(sum(t.numel() * t.element_size() for t in sent))
        return exchange(ops)

    dist.batch_isend_irecv = counted
    try:
        yield
    finally:
        dist.batch_isend_irecv = exchange


def measure(data: Data, args: argparse.Namespace) -> dict[str, Any]:
    def model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        width, classes = data.num_features, int(data.y.max()) + 1
        return GraphSAGE(width, args.hidden, args.layers, classes, norm='batch_norm')

    plain = model(args.seed)
    trainings = {
        name: Training(copy.deepcopy(plain), dtype, args.lr) for name, dtype in DTYPES.items()
    }
    trainings[OTHER_SEED] = Training(model(args.seed + 1), None, args.lr)
    for _ in range(args.epochs):
        for training in trainings.values():  # in turn, so that all see the same load
            training.epoch(data)
    exact = trainings['float32']
    return {
        'processor': processor(),
        'settings': {k: v for k, v in vars(args).items() if k != 'graph'},
        'processes': dist.get_world_size(),
        'nodes': data.num_nodes,
        'edges': data.num_edges,
        'halo_rows': _total(data.edge_index.handle.shard.num_halo),
        'load': os.getloadavg()[0],
        'trainings': {
            name: {
                'losses': t.losses,
                'accuracies': t.accuracies(data),
                'gradient_error': _relative_error(t.first_gradients, exact.first_gradients),
                'seconds': {
                    'median': statistics.median(t.seconds[1:]),
                    'min': min(t.seconds[1:]),
                    'max': max(t.seconds[1:]),
                },
                'bytes_sent_per_epoch': _total(t.bytes_sent) // args.epochs,
            }
            for name, t in trainings.items()
        },
    }


def _relative_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Of the norm of all gradients of the first step, where the weights are still the same."""
    differences = torch.cat([(a - b).flatten() for a, b in zip(found, exact, strict=True)])
    return float(differences.norm() / torch.cat([t.flatten() for t in exact]).norm())


def _total(count: int) -> int:
    return int(pyg_sar.loader.gather_batches(torch.tensor([count])).sum())


def print_rows(graph: str, results: dict[str, Any]) -> None:
    for name, r in results['trainings'].items():
        accuracies = (f'{r["accuracies"][s]:.4f}' for s in SETS)
        gradient = '' if name == OTHER_SEED else f'{r["gradient_error"]:.1e}'
        cells = [
            graph,
            name,
            f'{r["losses"][-1]:.5f}',
            *accuracies,
            gradient,
            f'{r["bytes_sent_per_epoch"] / 1e6:.1f}',
        ]
        print(f'| {" | ".join(cells)} |')


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('graph', help='a partition folder with x, y and masks, or a .pt file')
    parser.add_argument('--name', required=True, help='what the graph is called in the results')
    parser.add_argument('--method', default='metis', help='how a .pt file is cut')
    parser.add_argument('--hidden', type=int, default=128)
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--lr', type=float, default=0.003)
    parser.add_argument('--seed', type=int, default=0)
    return parser.parse_args()


if __name__ == '__main__':
    main()
