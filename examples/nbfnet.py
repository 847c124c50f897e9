"""Answers questions of a knowledge graph with NBFNet or an ULTRA-like model, on all the graph.

    python examples/nbfnet.py --draw 2000 parts/ --num-parts 4    # 2000 entities, cut once
    torchrun --nproc-per-node 4 examples/nbfnet.py parts/
    python examples/nbfnet.py parts/ --model ultra                # one process, all the parts

The question (head, relation, ?) is answered by a number for every entity. Its messages start at the
head and go over all edges, so that no part of the graph can be left out. Every entity has a row for
every question of a batch: ``[num_nodes, batch, dim]``.

NBFNet: Zhu et al., NeurIPS 2021, arXiv 2106.06935.
ULTRA: Galkin et al., ICLR 2024, arXiv 2310.04562.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, LayerNorm, Linear, Module, ModuleList, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree

import pyg_sar


def drawn(num_entities: int, seed: int = 0) -> Data:
    """A knowledge graph of four kinds of entities, of which two relations are compositions.

    Relations 0, 1 and 2 go from one kind to the next; 3 is 1 after 0, and 4 is 2 after 1. Edges
    are all known triples and their inverses, which are relations of their own, ``5 + r``. The
    other triples of the compositions are to be found: ``asked``, rows of (head, relation, tail).
    """
    generator = torch.Generator().manual_seed(seed)
    size = num_entities // 4
    to = [torch.randperm(size, generator=generator) for _ in range(3)]
    to += [to[1][to[0]], to[2][to[1]]]
    kinds = [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3)]  # of heads and tails
    head = torch.arange(size)
    triples = [
        torch.stack([head + a * size, torch.full_like(head, r), tail + b * size], dim=1)
        for r, (tail, (a, b)) in enumerate(zip(to, kinds, strict=True))
    ]
    composed = torch.cat(triples[3:])
    is_known = torch.rand(len(composed), generator=generator) < 0.7
    data = Data(num_nodes=num_entities, num_relations=2 * len(to))
    data.entity = torch.arange(num_entities)
    data.known = torch.cat([*triples[:3], composed[is_known]])
    data.asked = composed[~is_known]
    src, relation, dst = data.known.t()
    data.edge_index = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    data.edge_type = torch.cat([relation, relation + len(to)])
    return data


class BellmanFord(MessagePassing):
    """One step of the generalised Bellman-Ford algorithm, for all questions of a batch."""

    def __init__(self, dim: int, message: str = 'distmult', aggr: str = 'pna') -> None:
        super().__init__(aggr=['mean', 'min', 'max', 'var'] if aggr == 'pna' else aggr, node_dim=0)
        self.is_pna, self.kind = aggr == 'pna', message
        self.update_node = Linear((13 if self.is_pna else 2) * dim, dim)
        self.norm = LayerNorm(dim)

    def forward(
        self, x: Tensor, start: Tensor, edge_index: Tensor, edge_type: Tensor, relations: Tensor
    ) -> Tensor:
        """The next ``[N, B, dim]``, of this one, the boundary condition and ``[R, B, dim]``."""
        out = self.propagate(edge_index, x=x, edge_type=edge_type, relations=relations)
        if self.is_pna:
            out = self.with_start(out, start, degree(edge_index[1], x.size(0), dtype=x.dtype))
        else:
            out = out + start
        return x + self.norm(self.update_node(torch.cat([x, out], dim=-1))).relu()

    def message(self, x_j: Tensor, edge_type: Tensor, relations: Tensor) -> Tensor:
        relation = relations[edge_type]
        return x_j * relation if self.kind == 'distmult' else x_j + relation

    def with_start(self, out: Tensor, start: Tensor, num: Tensor) -> Tensor:
        """Statistics of the messages and the boundary condition, three times scaled by degree."""
        mean, least, most, var = out.chunk(4, dim=-1)
        num = num.view(-1, 1, 1)
        square = (num * (var + mean * mean) + start * start) / (num + 1)
        mean = (num * mean + start) / (num + 1)
        least = torch.where(num > 0, torch.minimum(least, start), start)
        most = torch.where(num > 0, torch.maximum(most, start), start)
        std = (square - mean * mean).clamp(min=1e-6).sqrt()
        found = torch.cat([mean, least, most, std], dim=-1)
        scale = (num + 1).log()
        scale = scale / scale.mean()
        return torch.cat([found, found * scale, found / scale.clamp(min=1e-2)], dim=-1)


class Paths(Module):
    """What all paths from the sources say of every node: ``[N, B, dim]``."""

    def __init__(self, dim: int, num_layers: int, **kinds: str) -> None:
        super().__init__()
        self.layers = ModuleList(BellmanFord(dim, **kinds) for _ in range(num_layers))

    def forward(
        self, start: Tensor, edge_index: Tensor, edge_type: Tensor, relations: list[Tensor]
    ) -> Tensor:
        x = start
        for layer, each in zip(self.layers, relations, strict=True):
            x = layer(x, start, edge_index, edge_type, each)
        return x


def boundary(entity: Tensor, source: Tensor, query: Tensor) -> Tensor:
    """``query[b]`` at node ``source[b]``, zeros elsewhere: ``[N, B, dim]``."""
    return (entity.view(-1, 1) == source).unsqueeze(-1) * query


class NBFNet(Module):
    """A number for every entity and question, ``[N, B]``."""

    def __init__(self, num_relations: int, dim: int, num_layers: int, **kinds: str) -> None:
        super().__init__()
        self.query = Embedding(num_relations, dim)
        self.of_layer = ModuleList(Linear(dim, num_relations * dim) for _ in range(num_layers))
        self.paths = Paths(dim, num_layers, **kinds)
        self.score = Sequential(Linear(2 * dim, dim), ReLU(), Linear(dim, 1))

    def forward(self, data: Data, edges: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
        head, relation = questions.t()
        query = self.query(relation)  # [B, dim]
        tables = [of(query).view(*query.shape, -1).permute(2, 0, 1) for of in self.of_layer]
        found = self.paths(boundary(data.entity, head, query), *edges, tables)
        return self.score(torch.cat([found, query.expand_as(found)], dim=-1)).squeeze(-1)


class Ultra(Module):
    """The same without a weight for any relation: these are nodes of a graph of their own."""

    def __init__(self, dim: int, num_layers: int, **kinds: str) -> None:
        super().__init__()
        self.meetings = ModuleList(Embedding(4, dim) for _ in range(num_layers))
        self.over_relations = Paths(dim, num_layers, **kinds)
        self.of_layer = ModuleList(Linear(dim, dim) for _ in range(num_layers))
        self.paths = Paths(dim, num_layers, **kinds)
        self.score = Sequential(Linear(2 * dim, dim), ReLU(), Linear(dim, 1))

    def forward(self, data: Data, edges: tuple[Tensor, Tensor], questions: Tensor) -> Tensor:
        head, relation = questions.t()
        ids = torch.arange(data.num_relations, device=head.device)
        one = torch.ones(len(head), self.score[0].out_features, device=head.device)
        start = boundary(ids, relation, one.to(self.score[0].weight.dtype))
        tables = [each.weight.unsqueeze(1) for each in self.meetings]
        found = self.over_relations(start, data.meeting_index, data.meeting_type, tables)
        query = found[relation, torch.arange(len(relation), device=head.device)]
        tables = [of(found) for of in self.of_layer]
        found = self.paths(boundary(data.entity, head, query), *edges, tables)
        return self.score(torch.cat([found, query.expand_as(found)], dim=-1)).squeeze(-1)


def with_meetings(data: Data) -> Data:
    """Adds the graph of relations: two meet in an entity, of which each is head or tail."""
    (src, dst), relation = data.edge_index, data.edge_type
    ends = []
    for end in (src, dst):
        ends.append(data.entity.new_zeros(data.num_nodes, data.num_relations, dtype=torch.float))
        ends[-1][end, relation] = 1
    pairs = [(a.t() @ b).nonzero().t() for a in ends for b in ends]
    data.meeting_index = torch.cat(pairs, dim=1)
    data.meeting_type = torch.cat([torch.full_like(each[0], i) for i, each in enumerate(pairs)])
    return data


def without(data: Data, triples: Tensor) -> tuple[Tensor, Tensor]:
    """The edges but for these triples and their inverses, and the relations of the edges."""
    (src, dst), half = data.edge_index, data.num_relations // 2
    head, relation, tail = triples.t()
    keys = torch.cat([key(data, head, relation, tail), key(data, tail, relation + half, head)])
    is_kept = ~torch.isin(key(data, src, data.edge_type, dst), keys)
    return data.edge_index[:, is_kept], data.edge_type[is_kept]


def key(data: Data, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
    return (head * data.num_relations + relation) * data.num_nodes + tail


def loss_of(model: Module, data: Data, triples: Tensor) -> Tensor:
    """How unlikely the right tails are among all entities; their edges are not seen."""
    score = model(data, without(data, triples), triples[:, :2])
    right = score[triples[:, 2], torch.arange(len(triples), device=score.device)]
    return (score.logsumexp(dim=0) - right).mean()


@torch.no_grad()
def ranks_of(model: Module, data: Data, triples: Tensor) -> Tensor:
    """Filtered: one plus the number of entities that get more and are no other right tail."""
    score = model(data, (data.edge_index, data.edge_type), triples[:, :2])
    at = torch.arange(len(triples), device=score.device)
    is_other = score > score[triples[:, 2], at]
    asked = triples[:, 0] * data.num_relations + triples[:, 1]
    every = torch.cat([data.known, data.asked])
    right = every[:, 0] * data.num_relations + every[:, 1]
    which, question = (right.view(-1, 1) == asked).nonzero().t()
    is_other[every[which, 2], question] = False
    return 1 + is_other.sum(dim=0)


def train(
    model: Module, data: Data, epochs: int, batch: int, lr: float = 0.005
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the loss of the last batch of every epoch, and the filtered ranks of what is asked."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        for chosen in torch.randperm(len(data.known)).split(batch):
            loss = loss_of(model, data, data.known[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield loss.detach(), torch.cat([ranks_of(model, data, q) for q in data.asked.split(batch)])


def main() -> None:
    args = parse()
    if args.draw:
        pyg_sar.partition_graph(drawn(args.draw), args.num_parts, args.root, force=True)
        return
    process = pyg_sar.init()
    data: Any = pyg_sar.load_shard(args.root).to(process.device)
    torch.manual_seed(0)
    kinds = {'message': args.message, 'aggr': args.aggr}
    if args.model == 'nbfnet':
        model: Module = NBFNet(data.num_relations, args.hidden, args.layers, **kinds)
    else:
        model, data = Ultra(args.hidden, args.layers, **kinds), with_meetings(data)
    model = pyg_sar.DistributedDataParallel(model.to(process.device))
    for epoch, (loss, ranks) in enumerate(train(model, data, args.epochs, args.batch)):
        if process.rank == 0:
            mrr, hits = (1 / ranks).mean(), (ranks <= 10).float().mean()
            text = f'epoch {epoch + 1:3d}  loss {loss:.6f}  MRR {mrr:.4f}  hits@10 {hits:.4f}'
            print(text, flush=True)
    if process.rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f'peak memory of rank 0, libraries included: {peak:,.0f} MiB')


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='the partition folder')
    parser.add_argument('--draw', type=int, metavar='N', help='draw a graph and cut it, once')
    parser.add_argument('--num-parts', type=int, default=4)
    parser.add_argument('--model', choices=('nbfnet', 'ultra'), default='nbfnet')
    parser.add_argument('--message', choices=('distmult', 'transe'), default='distmult')
    parser.add_argument('--aggr', choices=('sum', 'pna'), default='sum')
    parser.add_argument('--hidden', type=int, default=16)
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--batch', type=int, default=32, help='questions at a time')
    parser.add_argument('--epochs', type=int, default=3)
    return parser.parse_args()


if __name__ == '__main__':
    main()
