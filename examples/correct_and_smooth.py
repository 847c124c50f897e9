"""Trains an MLP on every node by itself, then corrects and smooths its predictions over the graph.

    python -m pyg_sar.partition wordnet-noun parts/ --num-parts 4 --split 0.6/0.2/0.2
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
from train_full_batch import labelled_sets, num_classes

import pyg_sar


def main() -> None:
    args = parse()
    process = pyg_sar.init()

    data = pyg_sar.load_shard(args.root).to(process.device)
    sets = labelled_sets(data)
    torch.manual_seed(args.seed)
    model = MLP([data.num_features, args.hidden, num_classes(data)], norm=None).to(process.device)
    if process.world_size > 1:  # no conv to wrap: torch's own will do
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        out = model(data.x)
        values = F.cross_entropy(out, data.y, reduction='none', ignore_index=-1)
        loss = pyg_sar.global_mean(values, data.train_mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(process, f'epoch {epoch:3d}  loss {loss:.6f}', out, data, sets)

    post = CorrectAndSmooth(args.layers, args.correction, args.layers, args.smoothing)
    post = pyg_sar.wrap(post)  # propagates over the whole graph
    with torch.no_grad():
        known = data.y[data.train_mask], data.train_mask, data.edge_index
        y_soft = model(data.x).softmax(dim=-1)
        report(process, 'predicted', y_soft, data, sets)
        y_soft = post.correct(y_soft, *known)
        report(process, 'corrected', y_soft, data, sets)
        y_soft = post.smooth(y_soft, *known)
        report(process, 'smoothed', y_soft, data, sets)


def report(process: pyg_sar.Process, what: str, out: Tensor, data: Data, sets: list[str]) -> None:
    """Rank 0 prints; every rank takes part in every mean."""
    correct = (out.argmax(dim=-1) == data.y).float()
    means = {name: pyg_sar.global_mean(correct, data[f'{name}_mask']) for name in sets}
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
