"""Trains an R-GCN on a heterogeneous graph, full batch, exactly as one machine would.

    python examples/hetero_rgcn.py parts/ --partition 4    # once: WordNet, 38 relations
    torchrun --nproc-per-node 4 examples/hetero_rgcn.py parts/
    python examples/hetero_rgcn.py parts/                  # one process, which owns all the parts

torchrun gives each process one thread: set OMP_NUM_THREADS to cores / processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, HeteroDictLinear, Linear, SAGEConv
from torch_geometric.transforms import ToUndirected

import pyg_sar
from pyg_sar.partition.sources import load_source

WORDNET = Path(__file__).parent / 'data' / 'wordnet_hetero.npz'


class RGCN(torch.nn.Module):
    """Every layer: a transform of the node itself, plus one of the mean of each relation."""

    def __init__(self, widths: dict[str, int], relations: list, hidden: int, out: int) -> None:
        super().__init__()
        self.encode = HeteroDictLinear(widths, hidden)
        self.roots, self.convs = torch.nn.ModuleList(), torch.nn.ModuleList()
        for _ in range(2):
            convs = {rel: SAGEConv(hidden, hidden, root_weight=False) for rel in relations}
            self.roots.append(HeteroDictLinear(hidden, hidden, types=list(widths)))
            self.convs.append(HeteroConv(convs))
        self.classify = Linear(hidden, out)

    def forward(self, x: dict[str, Tensor], edge_index: dict, target: str) -> Tensor:
        h = self.encode(x)
        for root, conv in zip(self.roots, self.convs, strict=True):
            own, messages = root(h), conv(h, edge_index)
            h = {key: (own[key] + messages.get(key, 0)).relu() for key in own}
        return self.classify(h[target])


def features(data: HeteroData) -> dict[str, Tensor]:
    """Types without features get a constant: their first layer is the mean of their neighbours.

    A table of embeddings would have a row per node of the whole graph, and a model's parameters
    are the same on all ranks.
    """
    (like, *_) = data.x_dict.values()
    ids = {s._key: s.get('n_id', torch.empty(s.num_nodes)) for s in data.node_stores}  # rows
    ones = {key: torch.ones_like(each, dtype=like.dtype).unsqueeze(1) for key, each in ids.items()}
    return {**ones, **data.x_dict}


def train(
    model: torch.nn.Module, data: HeteroData, target: str, epochs: int, lr: float = 0.01
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the loss and the accuracy on the validation nodes of every epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    x, nodes = features(data), data[target]
    for _ in range(epochs):
        out = model(x, data.edge_index_dict, target)
        loss = F.cross_entropy(out[nodes.train_mask], nodes.y[nodes.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct = (out.argmax(dim=-1) == nodes.y)[nodes.val_mask]
        yield loss.detach(), correct.float().mean()


def main() -> None:
    args = parse()
    if args.partition:
        # Both ways, so that words hear of their synsets; every way back is a relation of its own.
        data = ToUndirected(merge=False)(load_source(WORDNET))
        print(pyg_sar.partition_graph(data, args.partition, args.root, split='0.6/0.2/0.2'))
        return
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root).to(process.device)  # a HeteroData
    torch.manual_seed(args.seed)
    widths = {key: x.size(1) for key, x in features(data).items()}
    model = RGCN(widths, data.edge_types, args.hidden, data[args.target].num_classes)
    model = pyg_sar.DistributedDataParallel(model.to(process.device))
    for epoch, (loss, accuracy) in enumerate(train(model, data, args.target, args.epochs)):
        if process.rank == 0:
            print(f'epoch {epoch + 1:3d}  loss {loss:.6f}  accuracy {accuracy:.4f}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='partition folder of a heterogeneous graph')
    parser.add_argument('--partition', type=int, metavar='P', help='write WordNet there in P parts')
    parser.add_argument('--target', default='synset', help='node type with labels and masks')
    parser.add_argument('--hidden', type=int, default=64, help='numbers per node and layer')
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
