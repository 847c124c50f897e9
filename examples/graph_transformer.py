r"""Trains SGFormer, which attends to all nodes in every layer, on the whole graph.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/graph_transformer.py parts/
    python examples/graph_transformer.py parts/    # one process, which owns all the parts

Its attention is linear, ``q @ (k.t() @ v)``: ranks send sums, whatever the size of the graph. The
model is that of Wu et al., NeurIPS 2023, arXiv 2306.10759.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import SGFormer
from train_full_batch import labelled_sets

import pyg_sar


def main() -> None:
    args = parse()
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root).to(process.device)
    sets = labelled_sets(data)
    torch.manual_seed(args.seed)
    off = {'trans_dropout': args.dropout, 'gnn_dropout': args.dropout}
    model = SGFormer(data.num_features, args.hidden, int(data.y.max()) + 1, **off)
    model = pyg_sar.DistributedDataParallel(model.to(process.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    batch = torch.zeros_like(data.y)  # one graph

    for epoch in range(1, args.epochs + 1):
        out = model(data.x, data.edge_index, batch)
        loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
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
    parser.add_argument('--hidden', type=int, default=64)
    parser.add_argument('--dropout', type=float, default=0.0, help='of every rank by itself')
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--lr', type=float, default=0.005)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
