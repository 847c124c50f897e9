r"""Trains an MLP on every node by itself, then corrects and smooths its predictions over the graph.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/correct_and_smooth.py parts/
    python examples/correct_and_smooth.py parts/    # one process, which owns all the parts

The method is that of Huang et al., ICLR 2021, arXiv 2010.13993.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import MLP, CorrectAndSmooth
from train_full_batch import labelled_sets

import pyg_sar
from pyg_sar.launch.init import Process


def main() -> None:
    args = parse()
    process = pyg_sar.init()

    data = pyg_sar.load_shard(args.root).to(process.device)
    sets = labelled_sets(data)
    torch.manual_seed(args.seed)
    model = MLP([data.num_features, args.hidden, int(data.y.max()) + 1], norm=None).to(
        process.device
    )
    model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        out = model(data.x)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(process, f'epoch {epoch:3d}  loss {loss:.6f}', out, data, sets)

    post = CorrectAndSmooth(args.layers, args.correction, args.layers, args.smoothing)
    with torch.no_grad():
        known = data.y[data.train_mask], data.train_mask, data.edge_index
        y_soft = model(data.x).softmax(dim=-1)
        report(process, 'predicted', y_soft, data, sets)
        y_soft = post.correct(y_soft, *known)
        report(process, 'corrected', y_soft, data, sets)
        y_soft = post.smooth(y_soft, *known)
        report(process, 'smoothed', y_soft, data, sets)


def report(process: Process, what: str, out: Tensor, data: Data, sets: list[str]) -> None:
    """Every rank computes the shares, one prints."""
    correct = (out.argmax(dim=-1) == data.y).float()
    means = {name: float(correct[data[f'{name}_mask']].mean()) for name in sets}
    if process.rank == 0:
        accuracies = '  '.join(f'{name} {mean:.4f}' for name, mean in means.items())
        print(f'{what}  accuracy: {accuracies}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--hidden', type=int, default=64)
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--layers', type=int, default=20, help='propagations of each step')
    parser.add_argument('--correction', type=float, default=0.8, help='share of the neighbours')
    parser.add_argument('--smoothing', type=float, default=0.8, help='share of the neighbours')
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
