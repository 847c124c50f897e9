r"""Trains APPNP: predictions of every node by itself, then personalised PageRank over the graph.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/appnp.py parts/
    python examples/appnp.py parts/    # one process, which owns all the parts

The method is that of Gasteiger, Bojchevski and Günnemann, ICLR 2019, arXiv 1810.05997.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import APPNP
from torch_geometric.nn.models import MLP
from train_full_batch import labelled_sets

import pyg_sar


class Net(torch.nn.Module):
    """Predict, then propagate: K hops cost no more parameters than none."""

    def __init__(self, in_channels: int, out_channels: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.predict = MLP(
            [in_channels, args.hidden, out_channels], dropout=args.dropout, norm='batch_norm'
        )
        self.propagate = APPNP(args.hops, args.alpha)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(self.predict(x), edge_index)


def main() -> None:
    args = parse()
    process = pyg_sar.init()

    # A PyG Data: x, y, masks, edge_index of the whole graph, of which each rank holds a part.
    data = pyg_sar.load_shard(args.root).to(process.device)
    sets = labelled_sets(data)
    torch.manual_seed(args.seed)
    model = Net(data.num_features, int(data.y.max()) + 1, args).to(process.device)
    model = pyg_sar.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        out = model(data.x, data.edge_index)
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
    parser.add_argument('--hidden', type=int, default=64)
    parser.add_argument('--hops', type=int, default=10)
    parser.add_argument('--alpha', type=float, default=0.1, help='share of the own prediction')
    parser.add_argument('--dropout', type=float, default=0.5)
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
