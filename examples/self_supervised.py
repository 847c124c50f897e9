r"""Trains an encoder without labels by BGRL, GRACE, GraphMAE or CCA-SSG, full batch.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/self_supervised.py parts/ --method graph_mae
    python examples/self_supervised.py parts/    # one process, which owns all the parts

One line of GRACE alone is written for ranks: ``gather`` in the place of a product of all nodes with
all nodes, which fits on no rank. The labels only tell how good the embeddings are.

BGRL: Thakoor et al., ICLR 2022, arXiv 2102.06514. GRACE: Zhu et al., arXiv 2006.04131.
GraphMAE: Hou et al., KDD 2022, arXiv 2205.10803.
CCA-SSG: Zhang et al., NeurIPS 2021, arXiv 2106.12484.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import dropout_edge

import pyg_sar


class Model(torch.nn.Module):
    """An encoder, and what one of the methods needs beside it."""

    def __init__(self, in_channels: int, hidden: int) -> None:
        super().__init__()
        self.encoder = GCN(in_channels, hidden, 2)
        self.head = torch.nn.Linear(hidden, hidden)  # the predictor of BGRL, projector of GRACE
        self.decoder = torch.nn.Linear(hidden, in_channels)  # of GraphMAE
        self.token = torch.nn.Parameter(torch.zeros(in_channels))  # of a masked node

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.encoder(x, edge_index)


def view(data: Data) -> tuple[Tensor, Tensor]:
    """The graph without some of its edges and features."""
    keep = (torch.rand(data.num_features, device=data.x.device) > 0.2).float()
    return data.x * keep, dropout_edge(data.edge_index, 0.2)[0]


def bgrl(data: Data, model: Model, slow: Model) -> Tensor:
    """Each view foretells what a slow copy of the encoder makes of the other."""
    one, two = view(data), view(data)
    with torch.no_grad():
        goals = slow(*two), slow(*one)
    found = model.head(model(*one)), model.head(model(*two))
    pairs = zip(found, goals, strict=True)
    return -sum(F.cosine_similarity(z, goal).mean() for z, goal in pairs)


def grace(data: Data, model: Model, slow: Model) -> Tensor:
    """A node in one view is told from all nodes of both views."""
    one, two = (F.normalize(model.head(model(*view(data)))) / 0.7 for _ in range(2))
    losses = []
    for z, other in ((one, two), (two, one)):
        scores = torch.cat([z @ side.t() for side in (z, other)], dim=1)
        losses.append((scores.logsumexp(dim=1) - (z * other).sum(dim=1)).mean())
    return losses[0] + losses[1]


def graph_mae(data: Data, model: Model, slow: Model) -> Tensor:
    """The features of masked nodes are found by their neighbours."""
    masked = torch.randperm(data.num_nodes)[: data.num_nodes // 2].to(data.x.device)
    x = data.x.clone()
    x[masked] = model.token
    found = model.decoder(model(x, data.edge_index))
    return (1 - F.cosine_similarity(found[masked], data.x[masked])).square().mean()


def cca_ssg(data: Data, model: Model, slow: Model) -> Tensor:
    """Both views of a node are alike, its dimensions are not."""
    pair = [model(*view(data)) for _ in range(2)]
    one, two = ((z - z.mean(dim=0)) / z.std(dim=0) for z in pair)
    unit = torch.eye(one.size(1), device=data.x.device)
    apart = [(z.t() @ z / data.num_nodes - unit).square().sum() for z in (one, two)]
    return (one - two).square().sum(dim=1).mean() + 1e-3 * sum(apart)


METHODS = {method.__name__: method for method in (bgrl, grace, graph_mae, cca_ssg)}


def accuracy(model: Model, data: Data) -> float:
    """That of a linear layer on the embeddings, of the test nodes of all ranks."""
    with torch.no_grad():
        z = model(data.x, data.edge_index)
    probe = torch.nn.Linear(z.size(1), int(data.y.max()) + 1).to(z.device)
    optimizer = torch.optim.Adam(probe.parameters(), lr=0.05)
    for _ in range(50):
        error = F.cross_entropy(probe(z[data.train_mask]), data.y[data.train_mask])
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    right = (probe(z).argmax(dim=-1) == data.y)[data.test_mask]
    return float(right.float().mean())


def main() -> None:
    args = parse()
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root).to(process.device)
    torch.manual_seed(args.seed)
    model = Model(data.num_features, args.hidden).to(process.device)
    model = pyg_sar.DistributedDataParallel(model)
    slow = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        loss = METHODS[args.method](data, model, slow)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, new in zip(slow.parameters(), model.parameters(), strict=True):
                ours.lerp_(new, 0.1)
        if process.rank == 0:
            print(f'epoch {epoch:3d}  loss {loss:.6f}', flush=True)
    share = accuracy(model, data)  # on every rank
    if process.rank == 0:
        print(f'test accuracy {share:.4f}')


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--method', choices=METHODS, default='bgrl')
    parser.add_argument('--hidden', type=int, default=32, help='numbers per node')
    parser.add_argument('--epochs', type=int, default=20)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
