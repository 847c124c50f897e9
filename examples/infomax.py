r"""Learns embeddings without labels by Deep Graph Infomax, full batch, as one machine would.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/infomax.py parts/
    python examples/infomax.py parts/    # one process, which owns all the parts

The labels only tell how good the embeddings are: a logistic regression on them (scikit-learn). The
method is that of Velickovic et al., ICLR 2019, arXiv 1809.10341.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import DeepGraphInfomax, GCNConv

import pyg_sar


class Encoder(torch.nn.Module):
    """One layer."""

    def __init__(self, in_channels: int, hidden: int) -> None:
        super().__init__()
        self.conv = GCNConv(in_channels, hidden)
        self.act = torch.nn.PReLU(hidden)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.act(self.conv(x, edge_index))


def corruption(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """The features of other nodes, on whichever rank they are."""
    return x[torch.randperm(x.size(0))], edge_index


def summary(z: Tensor, *args: Tensor) -> Tensor:
    """Of the whole graph."""
    return z.mean(dim=0).sigmoid()


def make_model(in_channels: int, hidden: int) -> DeepGraphInfomax:
    """The plain model."""
    return DeepGraphInfomax(hidden, Encoder(in_channels, hidden), summary, corruption)


def train(model: torch.nn.Module, data: Data, epochs: int, lr: float = 0.001) -> Iterator[Tensor]:
    """Yields the loss of every epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        loss = model.loss(*model(data.x, data.edge_index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def accuracy(model: torch.nn.Module, data: Data) -> float:
    """That of a logistic regression on the embeddings, of the test nodes of all ranks."""
    model.eval()
    with torch.no_grad():
        z, _, _ = model(data.x, data.edge_index)
    known, test = data.train_mask, data.test_mask
    sets = z[known], data.y[known], z[test], data.y[test]
    return model.test(*map(pyg_sar.gather, sets), max_iter=150)  # scikit-learn wants all rows


def main() -> None:
    args = parse()
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root).to(process.device)
    torch.manual_seed(args.seed)
    model = make_model(data.num_features, args.hidden).to(process.device)
    model = pyg_sar.DistributedDataParallel(model)
    for epoch, loss in enumerate(train(model, data, args.epochs)):
        if process.rank == 0:
            print(f'epoch {epoch + 1:3d}  loss {loss:.6f}', flush=True)
    share = accuracy(model, data)  # on every rank
    if process.rank == 0:
        print(f'test accuracy {share:.4f}')


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--hidden', type=int, default=128, help='numbers per node')
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
