"""Predicts links with a graph autoencoder or LightGCN, full batch, exactly as one machine would.

    python examples/link_prediction.py parts/ --partition 4    # once: WordNet's nouns
    torchrun --nproc-per-node 4 examples/link_prediction.py parts/
    python examples/link_prediction.py parts/ --model lightgcn    # one process, all the parts

The links to predict are split off before the cut, as the models must not see them. They lie beside
the partition folder, in ids of the whole graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GAE, GraphSAGE, LightGCN
from torch_geometric.transforms import RandomLinkSplit

import pyg_sar
from pyg_sar.partition.sources import load_source


def split_links(data: Data) -> tuple[Data, dict[str, Tensor]]:
    """A graph without some of its links, and those: existing and drawn pairs ``[2, 2, num]``."""
    split = RandomLinkSplit(
        0.05, 0.1, is_undirected=data.is_undirected(), add_negative_train_samples=False
    )
    train, *others = split(data)
    links = {}
    for name, part in zip(('val', 'test'), others, strict=True):
        is_link = part.edge_label > 0
        pairs = [part.edge_label_index[:, mask] for mask in (is_link, ~is_link)]
        links[name] = torch.stack([each[:, : is_link.sum()] for each in pairs])
    del train.edge_label, train.edge_label_index
    return train, links


def embed(model: torch.nn.Module, data: Data) -> Tensor:
    """A row for every node."""
    if isinstance(model, GAE):
        return model.encode(data.x, data.edge_index)
    return model.get_embedding(data.edge_index)


def train(
    model: torch.nn.Module, data: Data, links: dict[str, Tensor], epochs: int, lr: float = 0.01
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yields the loss of every epoch, and how often a link is ranked above a pair without one."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        model.train()
        if isinstance(model, GAE):
            negative = pyg_sar.negative_sampling(data.edge_index, seed=epoch)
            loss = model.recon_loss(embed(model, data), data.edge_index, negative)
        else:
            src, dst, other = pyg_sar.negative_sampling(data.edge_index, paired=True, seed=epoch)
            z = embed(model, data)
            ranks = [(z[each] * z[dst]).sum(dim=-1) for each in (src, other)]
            loss = model.recommendation_loss(*ranks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            z = embed(model, data)
            yield loss.detach(), {name: ranked(z, pairs) for name, pairs in links.items()}


def ranked(z: Tensor, pairs: Tensor) -> Tensor:
    """How many of the links ``pairs[0]`` have a larger inner product than ``pairs[1]``."""
    link, no_link = ((z[src] * z[dst]).sum(dim=-1) for src, dst in pairs)
    return (link > no_link).float().mean()


def main() -> None:
    args = parse()
    links_file = Path(f'{args.root.rstrip("/")}.links.pt')
    if args.partition:
        graph, links = split_links(load_source(args.graph))
        print(pyg_sar.partition_graph(graph, args.partition, args.root))
        torch.save(links, links_file)
        return
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root).to(process.device)
    links = torch.load(links_file, map_location=process.device)
    torch.manual_seed(args.seed)
    if args.model == 'gae':
        model: Any = GAE(GraphSAGE(data.num_features, args.hidden, 2))
    else:
        model = LightGCN(data.num_nodes, args.hidden, 2)
    model = pyg_sar.DistributedDataParallel(model.to(process.device))
    for epoch, (loss, shares) in enumerate(train(model, data, links, args.epochs)):
        if process.rank == 0:
            found = '  '.join(f'{name} {share:.4f}' for name, share in shares.items())
            print(f'epoch {epoch + 1:3d}  loss {loss:.6f}  ranked right: {found}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='partition folder')
    parser.add_argument('--partition', type=int, metavar='P', help='write --graph there in P parts')
    graph = str(Path(__file__).parent / 'data' / 'wordnet_noun.npz')
    parser.add_argument('--graph', default=graph, help='what to cut; a file, or another source')
    parser.add_argument('--model', choices=('gae', 'lightgcn'), default='gae')
    parser.add_argument('--hidden', type=int, default=64, help='numbers per node')
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
