"""A small heterogeneous graph with everything awkward in it; float64 where models read it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import HeteroData

NUM_NODES = {'paper': 34, 'author': 25, 'term': 7, 'lonely': 9}

CITES = ('paper', 'cites', 'paper')
WRITES = ('author', 'writes', 'paper')
KNOWS = ('author', 'knows', 'author')
HAS = ('paper', 'has', 'term')
REVIEWS = ('author', 'reviews', 'paper')


def hetero_graph(seed: int = 0, *, reverse: bool = True) -> HeteroData:
    """Papers, authors, terms and lonely nodes.

    Self loops and repeated edges, isolated nodes, features of several widths, terms without
    features, a type without edges, a relation without edges, edge attributes on some relations,
    labels and masks on two types, and with `reverse` the reverse of every relation between types.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    def edges(src: str, dst: str, count: int) -> Tensor:
        ends = [
            torch.randint(NUM_NODES[end] - 2, (count,), generator=generator) for end in (src, dst)
        ]
        edge_index = torch.stack(ends)
        return torch.cat([edge_index, edge_index[:, :4]], dim=1)

    data = HeteroData(name='toy', sizes=[1, 2])
    data['paper'].x = normal(NUM_NODES['paper'], 6)
    data['paper'].y = torch.randint(3, (NUM_NODES['paper'],), generator=generator)
    data['paper'].train_mask = torch.rand(NUM_NODES['paper'], generator=generator) < 0.5
    data['paper'].num_classes = 3
    data['author'].x = normal(NUM_NODES['author'], 4)
    data['author'].age = torch.randint(99, (NUM_NODES['author'],), generator=generator).short()
    data['author'].train_mask = torch.rand(NUM_NODES['author'], generator=generator) < 0.3
    data['term'].num_nodes = NUM_NODES['term']
    data['lonely'].x = normal(NUM_NODES['lonely'], 3).float()
    loops = torch.tensor([[3, 4, 4], [3, 4, 4]])
    data[CITES].edge_index = torch.cat([edges('paper', 'paper', 90), loops], dim=1)
    data[CITES].edge_attr = normal(data[CITES].edge_index.size(1), 2)
    data[CITES].edge_weight = normal(data[CITES].edge_index.size(1)).abs()
    data[WRITES].edge_index = edges('author', 'paper', 70)
    data[WRITES].edge_attr = normal(74, 3)
    data[WRITES].year = torch.randint(2000, 2020, (74,), generator=generator).int()
    data[KNOWS].edge_index = edges('author', 'author', 40)
    data[HAS].edge_index = edges('paper', 'term', 50)
    data[REVIEWS].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data[REVIEWS].edge_attr = torch.empty(0, 5)
    return T.ToUndirected(merge=False)(data) if reverse else data


def assignment(num_parts: int, seed: int = 0) -> dict[str, Tensor]:
    """Parts at random, of very unequal size; some parts have no node of some type."""
    generator = torch.Generator().manual_seed(seed + num_parts)
    weights = torch.arange(1, num_parts + 1, dtype=torch.float)
    return {
        name: torch.multinomial(weights, count, replacement=True, generator=generator)
        for name, count in NUM_NODES.items()
    } | {'term': torch.zeros(NUM_NODES['term'], dtype=torch.int64)}
