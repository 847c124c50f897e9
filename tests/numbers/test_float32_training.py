r"""Long training in float32: losses on a cut graph beside those of one-process PyG.

200 epochs stay within 1e-3 of it, at every epoch. A longer run:

    python tests/numbers/test_float32_training.py --epochs 200 \
        --graph examples/data/wordnet_noun.npz

Each line tells how far losses lie from those of plain PyG with the same initial weights, and how
far plain PyG lies from itself with the nodes in another order: rounding, and what training makes
of it.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import pytest
import torch
from ranks import run_once, run_ranks
from soak import NUM_CLASSES, soak_graph
from three_steps import descend, supervised
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

import pyg_sar
from pyg_sar.partition.sources import load_source

MODELS = {
    'SAGE': lambda i, o: GraphSAGE(i, 32, 2, o, norm='batch_norm'),
    'GCN': lambda i, o: GCN(i, 32, 2, o),
    'GAT': lambda i, o: GAT(i, 32, 2, o, heads=4),
}


def plain(
    name: str, data: Any, num_classes: int, epochs: int, wrap: Callable[[Any], Any] = lambda m: m
) -> list[float]:
    """The losses of one-process PyG; on a rank `wrap` is DistributedDataParallel."""
    torch.manual_seed(0)
    model = wrap(MODELS[name](data.x.size(1), num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return descend(
        lambda: supervised(model(data.x, data.edge_index), data), optimizer, steps=epochs
    )


def cut(name: str, root: str, num_classes: int, epochs: int) -> list[float]:
    """The losses on a rank."""
    wrap = pyg_sar.DistributedDataParallel
    return plain(name, pyg_sar.load_shard(root), num_classes, epochs, wrap)


def permuted(data: Data) -> Data:
    """The same graph with its nodes and edges in another order."""
    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(data.num_nodes, generator=generator)
    place = torch.empty_like(order)
    place[order] = torch.arange(data.num_nodes)
    edges = torch.randperm(data.num_edges, generator=generator)
    rows = {name: data[name][order] for name in ('x', 'y', 'train_mask')}
    return Data(**rows, edge_index=place[data.edge_index[:, edges]])


def difference(losses: list[float], expected: list[float]) -> tuple[float, float]:
    """The largest over all epochs, absolute and relative."""
    pairs = list(zip(losses, expected, strict=True))
    return max(abs(a - b) for a, b in pairs), max(abs(a - b) / abs(b) for a, b in pairs)


EPOCHS, BOUND = 200, 1e-3


@functools.cache
def _expected(name: str) -> list[float]:
    return plain(name, soak_graph(60), NUM_CLASSES, EPOCHS)


@pytest.mark.bench
@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize('world_size', [2, 4])
def test_losses(tmp_path: Path, name: str, world_size: int) -> None:
    """Absolute and relative."""
    pyg_sar.partition_graph(soak_graph(60), world_size, tmp_path / 'parts')
    args = name, str(tmp_path / 'parts'), NUM_CLASSES, EPOCHS
    expected = _expected(name)
    assert expected[-1] < 0.5 * expected[0]
    for losses in run_ranks(cut, world_size, *args, timeout=400):
        absolute, relative = difference(losses, expected)
        assert absolute <= BOUND
        assert relative <= BOUND


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--epochs', type=int, default=200)
    parser.add_argument('--graph', default='communities', help='or a file')
    args = parser.parse_args()
    data = soak_graph() if args.graph == 'communities' else load_source(args.graph)
    if 'train_mask' not in data:
        generator = torch.Generator().manual_seed(1)
        data.train_mask = torch.rand(data.num_nodes, generator=generator) < 0.6
        data.train_mask &= data.y >= 0
    more = int(data.y.max()) + 1, args.epochs
    with tempfile.TemporaryDirectory() as folder:
        for num_parts in (2, 4):
            pyg_sar.partition_graph(data, num_parts, f'{folder}/{num_parts}')
        for name in MODELS:
            expected = plain(name, data, *more)
            print(f'{name}: loss {expected[0]:.4f} to {expected[-1]:.6f}', flush=True)
            found = {'plain, other order': plain(name, permuted(data), *more)}
            for n in (2, 4):
                losses = run_once(cut, n, name, f'{folder}/{n}', *more, timeout=3600)
                found[f'{n} ranks'] = losses[0]
            for what, losses in found.items():
                absolute, relative = difference(losses, expected)
                print(f'  {what}: {absolute:.1e}, relative {relative:.1e}', flush=True)


if __name__ == '__main__':
    main()
