"""Small graphs, the same in every run: float64 features and edge values of every kind."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

NUM_FEATURES, NUM_EDGE_FEATURES, NUM_CLASSES, NUM_EDGE_TYPES = 8, 4, 3, 3


def awkward_graph(num_nodes: int = 60, num_edges: int = 300, seed: int = 0) -> Data:
    """Directed, with self loops, repeated edges and three isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(num_nodes - 3, (2, num_edges), generator=generator)
    loops = torch.tensor([[3, 4, 4], [3, 4, 4]])
    return with_values(torch.cat([edges, edges[:, : num_edges // 10], loops], dim=1), num_nodes)


def two_communities(size: int = 10, num_bridges: int = 2) -> Data:
    """Two cliques of `size` nodes, joined by `num_bridges` undirected edges; y tells which."""
    nodes = torch.arange(size)
    clique = torch.cartesian_prod(nodes, nodes).t()
    clique = clique[:, clique[0] != clique[1]]
    bridges = torch.stack([nodes[:num_bridges], nodes[:num_bridges] + size])
    edge_index = torch.cat([clique, clique + size, bridges, bridges.flip(0)], dim=1)
    data = with_values(edge_index, 2 * size)
    data.y = torch.arange(2 * size) // size
    return data


def with_values(edge_index: Tensor, num_nodes: int, seed: int = 0) -> Data:
    """A graph with these edges and values of every kind.

    ============= ================ =====================================
    x             float64 [N, 8]   normal
    y             int64 [N]        0, 1 or 2
    train_mask    bool [N]         about half the nodes, node 0 among them
    edge_weight   float64 [E]      0.1 to 1.1
    edge_attr     float64 [E, 4]   normal
    edge_type     int64 [E]        0, 1 or 2
    ============= ================ =====================================
    """
    num_edges = edge_index.size(1)
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    return Data(
        x=normal(num_nodes, NUM_FEATURES),
        edge_index=edge_index,
        y=torch.randint(NUM_CLASSES, (num_nodes,), generator=generator),
        train_mask=(
            torch.rand(num_nodes, generator=generator, dtype=torch.float32) < 0.5
        ).index_fill(0, torch.tensor([0]), True),
        edge_weight=torch.rand(num_edges, dtype=torch.float64, generator=generator) + 0.1,
        edge_attr=normal(num_edges, NUM_EDGE_FEATURES),
        edge_type=torch.randint(NUM_EDGE_TYPES, (num_edges,), generator=generator),
        num_nodes=num_nodes,
    )
