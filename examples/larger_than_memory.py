r"""Trains GraphSAGE in one process on a graph whose activations do not fit into its memory.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 8 \
        --split 0.6/0.2/0.2
    python examples/larger_than_memory.py parts/ --memory 64MB --spill /scratch

All parts take turns; what waits is in a file on the disk. The losses are those of one process that
has memory enough, and of 8 processes of torchrun, which would run the same `train`.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from torch_geometric.nn.models import GraphSAGE

import pyg_sar


def train(args: argparse.Namespace) -> list[float]:
    """The program of a rank; gives the loss of every epoch."""
    pyg_sar.init()
    data = pyg_sar.load_shard(args.root)
    torch.manual_seed(0)
    sizes = (data.num_features, args.hidden, 3, data.num_classes)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(*sizes, norm='batch_norm'))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(args.epochs):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    args = parse()
    found = pyg_sar.run_in_turns(
        partial(train, args), args.root, memory=args.memory, spill=args.spill
    )
    for epoch, loss in enumerate(found.results[0], 1):
        print(f'epoch {epoch}  loss {loss:.4f}')
    figures = found.figures
    print(
        f'{figures.peak / 1e6:.1f} MB of large tensors at most, '
        f'{figures.written / 1e6:.1f} MB written, {figures.read / 1e6:.1f} MB read'
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--memory', default='64MB', help='for large tensors of all parts together')
    parser.add_argument('--spill', default='.', help='folder on a disk')
    parser.add_argument('--hidden', type=int, default=256, help='numbers per node and layer')
    parser.add_argument('--epochs', type=int, default=5)
    return parser.parse_args()


if __name__ == '__main__':
    main()
