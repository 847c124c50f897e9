r"""Trains SIGN: features propagated over the whole graph once, then an MLP on every node by itself.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/sign.py parts/ --features sign.npy    # kept in a file
    python examples/sign.py parts/    # one process, which owns all the parts

The method is that of Frasca et al., 2020, arXiv 2004.11198.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MLP, SimpleConv
from train_full_batch import labelled_sets

import pyg_sar


class Net(torch.nn.Module):
    """One linear layer per hop, and an MLP on all of them."""

    def __init__(self, in_channels: int, out_channels: int, hops: int, hidden: int) -> None:
        super().__init__()
        self.lins = torch.nn.ModuleList(
            torch.nn.Linear(in_channels, hidden) for _ in range(hops + 1)
        )
        self.mlp = MLP([(hops + 1) * hidden, hidden, out_channels], norm=None)

    def forward(self, x: Tensor) -> Tensor:
        xs = x.chunk(len(self.lins), dim=-1)
        hidden = [lin(x).relu() for lin, x in zip(self.lins, xs, strict=True)]
        return self.mlp(torch.cat(hidden, dim=-1))


@torch.no_grad()
def propagated(data: Data, hops: int) -> Tensor:
    """The features, and ``(D^-1/2 A D^-1/2)^i X`` for every hop i, side by side."""
    sums = pyg_sar.SARConv(SimpleConv(aggr='sum'))  # reads other ranks' rows
    degree = sums(torch.ones_like(data.x[:, :1]), data.edge_index)
    scale = degree.clamp(min=1).rsqrt()
    xs = [data.x]
    for _ in range(hops):
        xs.append(scale * sums(scale * xs[-1], data.edge_index))
    return torch.cat(xs, dim=-1)


def main() -> None:
    args = parse()
    process = pyg_sar.init()

    data = pyg_sar.load_shard(args.root).to(process.device)
    sets = labelled_sets(data)
    if args.features and args.features.exists():
        x = pyg_sar.load_rows(args.features, data)
    else:
        x = propagated(data, args.hops)
        if args.features:
            pyg_sar.save_rows(args.features, x, data)

    torch.manual_seed(args.seed)
    model = Net(data.num_features, int(data.y.max()) + 1, args.hops, args.hidden).to(process.device)
    model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        out = model(x)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # Of the weights before this step; every rank computes them, one prints.
        correct = (out.argmax(dim=-1) == data.y).float()
        means = {name: float(correct[data[f'{name}_mask']].mean()) for name in sets}
        if process.rank == 0:
            accuracies = '  '.join(f'{name} {mean:.4f}' for name, mean in means.items())
            print(f'epoch {epoch:3d}  loss {loss:.6f}  accuracy: {accuracies}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--hops', type=int, default=3)
    parser.add_argument('--hidden', type=int, default=64)
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--features', metavar='FILE', type=Path, help='.npy file to keep them in')
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
