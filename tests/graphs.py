"""Small graphs, the same in every run: float64 features and edge values of every kind."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

NUM_FEATURES, NUM_EDGE_FEATURES, NUM_CLASSES, NUM_EDGE_TYPES = 8, 4, 3, 3


def random_graph(
    num_nodes: int = 40,
    num_edges: int = 200,
    seed: int = 0,
    *,
    directed: bool = True,
    self_loops: bool = False,
    duplicates: bool = False,
    num_isolated: int = 0,
) -> Data:
    """Distinct edges drawn evenly, and what is asked for beside them.

    Args:
        num_nodes: Number of nodes, isolated ones included.
        num_edges: Number of edges before self loops and duplicates; even if not `directed`.
        seed: Of the edges and all values.
        directed: If false, every edge comes with its reverse.
        self_loops: Adds a loop at every third node, and a second one at node 0.
        duplicates: Repeats the first tenth of the edges.
        num_isolated: The last nodes have no edge at all.
    """
    nodes = torch.arange(num_nodes - num_isolated)
    pairs = torch.cartesian_prod(nodes, nodes).t()
    pairs = pairs[:, pairs[0] != pairs[1] if directed else pairs[0] < pairs[1]]
    count = num_edges if directed else num_edges // 2
    if pairs.size(1) < count:
        raise ValueError(f"'num_edges' must be at most {pairs.size(1)} distinct ones (got {count})")
    generator = torch.Generator().manual_seed(seed)
    edges = pairs[:, torch.randperm(pairs.size(1), generator=generator)[:count]]
    if not directed:
        edges = torch.cat([edges, edges.flip(0)], dim=1)
    extra = [edges]
    if duplicates:
        extra.append(edges[:, : max(1, edges.size(1) // 10)])
    if self_loops:
        extra.append(torch.cat([nodes[::3], nodes[:1]]).repeat(2, 1))
    return with_values(torch.cat(extra, dim=1), num_nodes, seed)


def awkward_graph(num_nodes: int = 40, num_edges: int = 200, seed: int = 0) -> Data:
    """Directed, with self loops, repeated edges and three isolated nodes."""
    return random_graph(
        num_nodes, num_edges, seed, self_loops=True, duplicates=True, num_isolated=3
    )


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


def star(num_leaves: int = 19) -> Data:
    """Every leaf points to node 0: one node has all the in-edges."""
    leaves = torch.arange(1, num_leaves + 1)
    return with_values(torch.stack([leaves, torch.zeros_like(leaves)]), num_leaves + 1)


def cycle(num_nodes: int = 12) -> Data:
    """Node i points to node i + 1, the last one to node 0."""
    nodes = torch.arange(num_nodes)
    return with_values(torch.stack([nodes, nodes.roll(-1)]), num_nodes)


def no_edges(num_nodes: int = 9) -> Data:
    """Nodes alone."""
    return with_values(torch.empty(2, 0, dtype=torch.int64), num_nodes)


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
        train_mask=(torch.rand(num_nodes, generator=generator) < 0.5).index_fill(
            0, torch.tensor([0]), True
        ),
        edge_weight=torch.rand(num_edges, dtype=torch.float64, generator=generator) + 0.1,
        edge_attr=normal(num_edges, NUM_EDGE_FEATURES),
        edge_type=torch.randint(NUM_EDGE_TYPES, (num_edges,), generator=generator),
        num_nodes=num_nodes,
    )
