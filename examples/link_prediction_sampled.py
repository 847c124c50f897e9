"""Predicts links on mini-batches of links, and evaluates exactly.

    python examples/link_prediction.py parts/ --partition 4    # once: WordNet's nouns
    torchrun --nproc-per-node 4 examples/link_prediction_sampled.py parts/
    python examples/link_prediction_sampled.py parts/    # one process, all the parts

Every batch asks for some links and as many pairs without one; no link is an edge of the batch that
asks for it. Any number of processes has batches of the same links and pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from link_prediction import ranked
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_sar


def train(
    model: torch.nn.Module,
    data: Data,
    links: dict[str, Tensor],
    epochs: int,
    batch_size: int,
    fan_outs: tuple[int, int] = (10, 5),
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yields the mean loss of every epoch, and how often a link is ranked above another pair."""
    loader = pyg_sar.LinkNeighborLoader(
        data,
        fan_outs,
        batch_size=batch_size,
        shuffle=True,
        neg_sampling='binary',
        exclude_edges='reverse',
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(epochs):
        losses = []
        model.train()
        for batch in loader:
            src, dst = model(batch.x, batch.edge_index)[batch.edge_label_index]
            label = batch.edge_label.to(src.dtype)
            values = F.binary_cross_entropy_with_logits(
                (src * dst).sum(dim=-1), label, reduction='none'
            )
            loss = pyg_sar.loader.mean_of_batches(values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            z = model(data.x, data.edge_index)  # of the whole graph
            shares = {name: ranked(z, pairs) for name, pairs in links.items()}
            yield torch.stack(losses).mean(), shares


def main() -> None:
    args = parse()
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root)
    links = torch.load(Path(f'{args.root.rstrip("/")}.links.pt'))
    torch.manual_seed(args.seed)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(data.num_features, args.hidden, 2))
    for epoch, (loss, shares) in enumerate(train(model, data, links, args.epochs, args.batch_size)):
        if process.rank == 0:
            found = '  '.join(f'{name} {share:.4f}' for name, share in shares.items())
            print(f'epoch {epoch + 1:3d}  loss {loss:.6f}  ranked right: {found}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by link_prediction.py --partition')
    parser.add_argument('--hidden', type=int, default=64, help='numbers per node')
    parser.add_argument('--batch-size', type=int, default=1024, help='links of all processes')
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
