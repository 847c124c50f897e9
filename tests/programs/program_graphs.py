"""The graphs that programs run on, and how they are cut.

Both have what is awkward: self loops, repeated edges, isolated nodes, and parts of very unequal
size, one of them without a training node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 91, 6, 3
TYPES = {'paper': 43, 'author': 32, 'venue': 11}
WIDTHS = {'paper': 6, 'author': 5, 'venue': 4}


def graph(seed: int = 0) -> Data:
    """One type of nodes; class 2 is rare, and edges join mostly nodes of a class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(5, (NUM_NODES,), generator=generator).clamp(max=3) % NUM_CLASSES
    y[:3] = torch.arange(3)
    ends = torch.randint(NUM_NODES - 3, (2, 420), generator=generator)  # the last are isolated
    # One self loop a node: which of several weights GCNConv keeps depends on the order.
    alike = y[ends[0]] == y[ends[1]]
    kept = (ends[0] != ends[1]) & (alike | (torch.rand(420, generator=generator) < 0.25))
    edges = ends[:, kept]
    loops = torch.tensor([[3, 4, 50], [3, 4, 50]])
    edge_index = torch.cat([edges, edges[:, :40].flip(0), edges[:, :9], loops], dim=1)
    edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=generator)]
    num_edges = edge_index.size(1)
    x = torch.randn(NUM_NODES, NUM_FEATURES, dtype=torch.float64, generator=generator)
    x = x + y.view(-1, 1) * 0.5 + 1.5
    drawn = torch.rand(NUM_NODES, generator=generator)
    return Data(
        x=x,
        y=y,
        edge_index=edge_index,
        edge_weight=torch.rand(num_edges, dtype=torch.float64, generator=generator) + 0.1,
        edge_attr=torch.randn(num_edges, 4, dtype=torch.float64, generator=generator),
        edge_type=torch.randint(3, (num_edges,), generator=generator),
        train_mask=drawn < 0.5,
        val_mask=(drawn >= 0.5) & (drawn < 0.75),
        test_mask=drawn >= 0.75,
    )


def hetero_graph(seed: int = 0) -> HeteroData:
    """Papers with labels, authors and venues; every relation and its reverse."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for name, count in TYPES.items():
        shape = count, WIDTHS[name]
        data[name].x = torch.randn(*shape, dtype=torch.float64, generator=generator) + 0.5
    num_papers = TYPES['paper']
    data['paper'].y = torch.randint(3, (num_papers,), generator=generator)
    drawn = torch.rand(num_papers, generator=generator)
    data['paper'].train_mask = drawn < 0.5
    data['paper'].val_mask = (drawn >= 0.5) & (drawn < 0.75)
    data['paper'].test_mask = drawn >= 0.75

    def edges(src: str, dst: str, count: int) -> Tensor:
        ends = [torch.randint(TYPES[end] - 1, (count,), generator=generator) for end in (src, dst)]
        return torch.stack(ends)

    cites = torch.cat([edges('paper', 'paper', 96), torch.tensor([[3, 4], [3, 4]])], dim=1)
    data['paper', 'cites', 'paper'].edge_index = cites
    count = cites.size(1)
    data['paper', 'cites', 'paper'].edge_attr = torch.randn(
        count, 4, dtype=torch.float64, generator=generator
    )
    data['paper', 'cites', 'paper'].edge_weight = (
        torch.rand(count, dtype=torch.float64, generator=generator) + 0.1
    )
    writes, published = edges('author', 'paper', 77), edges('paper', 'venue', 52)
    data['author', 'writes', 'paper'].edge_index = writes
    data['paper', 'rev_writes', 'author'].edge_index = writes.flip(0)
    data['paper', 'in', 'venue'].edge_index = published
    data['venue', 'rev_in', 'paper'].edge_index = published.flip(0)
    data['author', 'knows', 'author'].edge_index = edges('author', 'author', 61)
    return data


def parts_of(data: Data | HeteroData, num_parts: int) -> Any:
    """The part of every node; the last part is small and has no training node."""
    generator = torch.Generator().manual_seed(num_parts)

    def drawn(count: int, train: Tensor | None) -> Tensor:
        sizes = torch.arange(num_parts, 0, -1, dtype=torch.float64)
        part = torch.multinomial(sizes, count, replacement=True, generator=generator)
        if train is not None:
            part[train & (part == num_parts - 1)] = 0
        return part

    if isinstance(data, HeteroData):
        return {s._key: drawn(s.num_nodes, s.get('train_mask')) for s in data.node_stores}
    return drawn(NUM_NODES, data.train_mask)
