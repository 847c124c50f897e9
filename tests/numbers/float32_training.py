r"""Long training in float32: losses on a cut graph beside those of one-process PyG.

    python tests/numbers/float32_training.py --epochs 200 \
        --graph examples/data/wordnet_noun.npz

Each line tells how far losses lie from those of plain PyG with the same initial weights, and how
far plain PyG lies from itself with the nodes in another order: rounding, and what training makes
of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch
import torch.nn.functional as F
from ranks import run_once
from soak import soak_graph
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

import pyg_sar
from pyg_sar.partition.sources import load_source

MODELS = {
    'SAGE': lambda i, o: GraphSAGE(i, 32, 2, o, norm='batch_norm'),
    'GCN': lambda i, o: GCN(i, 32, 2, o),
    'GAT': lambda i, o: GAT(i, 32, 2, o, heads=4),
}


def _model(name: str, num_features: int, num_classes: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[name](num_features, num_classes)


def plain(name: str, data: Data, num_classes: int, epochs: int) -> list[float]:
    """The losses of one-process PyG."""
    model = _model(name, data.x.size(1), num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def permuted(data: Data) -> Data:
    """The same graph with its nodes and edges in another order."""
    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(data.num_nodes, generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(data.num_nodes)
    edges = torch.randperm(data.num_edges, generator=generator)
    return Data(
        x=data.x[order],
        y=data.y[order],
        train_mask=data.train_mask[order],
        edge_index=place[data.edge_index[:, edges]],
    )


def cut(name: str, root: str, num_classes: int, epochs: int) -> list[float]:
    """The losses on a rank."""
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_model(name, data.x.size(1), num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        out = model(data.x, data.edge_index)
        mask = data.train_mask
        loss = F.cross_entropy(out[mask], data.y[mask], ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def difference(losses: list[float], expected: list[float]) -> tuple[float, float]:
    """The largest over all epochs, absolute and relative."""
    pairs = list(zip(losses, expected, strict=True))
    return max(abs(a - b) for a, b in pairs), max(abs(a - b) / abs(b) for a, b in pairs)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--epochs', type=int, default=200)
    parser.add_argument('--graph', default='communities', help='or a file')
    parser.add_argument('--models', nargs='+', default=list(MODELS))
    parser.add_argument('--ranks', nargs='+', type=int, default=[2, 4])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = soak_graph() if args.graph == 'communities' else load_source(args.graph)
        if 'train_mask' not in data:
            generator = torch.Generator().manual_seed(1)
            data.train_mask = torch.rand(data.num_nodes, generator=generator) < 0.6
            data.train_mask &= data.y >= 0
        num_classes = int(data.y.max()) + 1
        for num_parts in args.ranks:
            pyg_sar.partition_graph(data, num_parts, f'{folder}/{num_parts}')
        for name in args.models:
            expected = plain(name, data, num_classes, args.epochs)
            print(f'{name}: loss {expected[0]:.4f} to {expected[-1]:.6f}', flush=True)
            other = difference(plain(name, permuted(data), num_classes, args.epochs), expected)
            print(f'  plain, other order: {other[0]:.1e}, relative {other[1]:.1e}', flush=True)
            for num_parts in args.ranks:
                found = run_once(
                    cut, num_parts, name, f'{folder}/{num_parts}', num_classes, args.epochs,
                    timeout=3600,
                )  # fmt: skip
                own = difference(found[0], expected)
                print(f'  {num_parts} ranks: {own[0]:.1e}, relative {own[1]:.1e}', flush=True)


if __name__ == '__main__':
    main()
