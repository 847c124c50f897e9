"""Predicts what nodes will be at a time, from the edges that were there by then, on mini-batches.

    python examples/temporal_sampled.py parts/ --partition 2    # once: a drawn graph
    torchrun --nproc-per-node 2 examples/temporal_sampled.py parts/
    python examples/temporal_sampled.py parts/    # one process, which owns all the parts

The graph is a stream of messages between nodes of two colours. Every node is asked several times
which colour most of the last three messages had that it got: early on to train, later on to test.
No batch holds an edge that is younger than the question. --strategy uniform reads any of the older
messages instead of the last ones, and cannot know.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_sar

NUM_QUESTIONS = 8


def draw_graph(num_nodes: int = 2000, seed: int = 0) -> Data:
    """Nodes with a colour, twenty messages for each with their times, and questions."""
    generator = torch.Generator().manual_seed(seed)
    num_edges = 20 * num_nodes
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    color = torch.randint(2, (num_nodes,), generator=generator)
    shape = num_nodes, NUM_QUESTIONS
    asked = torch.randint(num_edges // 4, num_edges, shape, generator=generator)

    # Messages by the node that gets them, then by time: those before a question end at one place.
    src, dst = edge_index
    order = torch.argsort(dst, stable=True)
    keys = dst[order] * num_edges + order
    node = torch.arange(num_nodes).unsqueeze(1)
    end = torch.searchsorted(keys, node * num_edges + asked, right=True)
    last = end.unsqueeze(-1) - torch.arange(1, 4)
    is_there = last >= torch.searchsorted(keys, node * num_edges).unsqueeze(-1)
    signs = torch.where(is_there, 2 * color[src[order[last.clamp(min=0)]]] - 1, 0)
    return Data(
        x=F.one_hot(color, 2).float(),
        edge_index=edge_index,
        time=torch.arange(num_edges),
        asked=asked,
        y=(signs.sum(-1) > 0).long(),
    )


def questions(data: Data, is_late: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes that are asked in the last quarter of the time, or before; when; the answers."""
    asked, y = pyg_sar.gather(data.asked), pyg_sar.gather(data.y)
    row, column = ((asked >= 0.75 * data.num_edges) == is_late).nonzero().t()
    return row, asked[row, column], y[row, column]


def train(
    model: torch.nn.Module, data: Data, strategy: str, epochs: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the mean loss of every epoch, and the share of late questions answered right."""
    sets = [questions(data, is_late) for is_late in (False, True)]
    del data.asked, data.y  # else batches have them, too
    loaders = [
        pyg_sar.NeighborLoader(
            data,
            [3, 2],
            input_nodes=nodes,
            input_time=times,
            time_attr='time',
            temporal_strategy=strategy,
            batch_size=batch_size,
            shuffle=nodes is sets[0][0],
        )
        for nodes, times, _ in sets
    ]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        losses, shares = [], []
        model.train()
        for out, y in answers(model, loaders[0], sets[0][2]):
            loss = pyg_sar.loader.mean_of_batches(F.cross_entropy(out, y, reduction='none'))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            for out, y in answers(model, loaders[1], sets[1][2]):
                shares.append(out.argmax(dim=-1) == y)
            yield torch.stack(losses).mean(), pyg_sar.loader.mean_of_batches(torch.cat(shares))


def answers(
    model: torch.nn.Module, loader: pyg_sar.NeighborLoader, y: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of every batch what the model says of its questions, and the answers."""
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        yield out, y[batch.input_id]  # the places of the questions


def main() -> None:
    args = parse()
    if args.partition:
        print(pyg_sar.partition_graph(draw_graph(), args.partition, args.root))
        return
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root)
    torch.manual_seed(args.seed)
    model = GraphSAGE(data.num_features, args.hidden, 2, out_channels=2)
    model = pyg_sar.DistributedDataParallel(model)
    steps = train(model, data, args.strategy, args.epochs, args.batch_size)
    for epoch, (loss, share) in enumerate(steps):
        if process.rank == 0:
            print(f'epoch {epoch + 1:3d}  loss {loss:.6f}  answered right: {share:.4f}', flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='partition folder')
    parser.add_argument('--partition', type=int, metavar='P', help='write a graph there in P parts')
    parser.add_argument('--strategy', choices=('last', 'uniform'), default='last')
    parser.add_argument('--hidden', type=int, default=16, help='numbers per node and layer')
    parser.add_argument('--batch-size', type=int, default=512, help='questions of all processes')
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
