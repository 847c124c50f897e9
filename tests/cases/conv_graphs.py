"""The graphs the convs are called on, the same in every run."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from graphs import awkward_graph
from hetero_graphs import hetero_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData

NUM_NODE_TYPES = 3


def plain() -> Data:
    """Self loops, repeated edges, isolated nodes; 8 features, 4 edge features, 3 edge types.

    Beside the attributes of ``graphs.awkward_graph``:

    ============= ================ ============================================
    pos, normal   float64 [N, 3]   points and unit vectors
    node_type     int64 [N]        0, 1 or 2
    node          int64 [N]        the node's id
    pseudo        float64 [E, 2]   0 to 1
    ============= ================ ============================================
    """
    data = awkward_graph()
    num_nodes, num_edges = data.num_nodes, data.edge_index.size(1)
    draw = _Draw(1)
    data.pos = draw.normal(num_nodes, 3)
    data.normal = F.normalize(draw.normal(num_nodes, 3), dim=-1)
    data.node_type = draw.integers(NUM_NODE_TYPES, num_nodes)
    data.node = torch.arange(num_nodes)
    data.pseudo = torch.rand(num_edges, 2, dtype=torch.float64, generator=draw.generator)
    return data


def in_order() -> Data:
    """The same, its edges sorted by destination."""
    data = plain()
    return data.edge_subgraph(data.edge_index[1].argsort(stable=True))


def loops_once() -> Data:
    """The same as `plain`, with one self loop at a node at most.

    Of several with different weights PyG's functions keep one: on a CPU the last, on a device any.
    """
    data = plain()
    seen: set[int] = set()
    is_kept = []
    for src, dst in data.edge_index.t().tolist():
        is_kept.append(src != dst or src not in seen)
        seen |= {src} if src == dst else set()
    return data.edge_subgraph(torch.tensor(is_kept))


def bipartite() -> HeteroData:
    """40 sources of 8 features, 25 destinations of 5, and edges from the ones to the others."""
    draw = _Draw(3)
    data = HeteroData()
    for name, num_nodes, width in (('src', 40, 8), ('dst', 25, 5)):
        data[name].x = draw.normal(num_nodes, width)
        data[name].pos = draw.normal(num_nodes, 3)
        data[name].normal = F.normalize(draw.normal(num_nodes, 3), dim=-1)
    _connect(data, draw, 'src', 'to', 'dst', 150)
    return data


def hetero() -> HeteroData:
    """Users, items and tags with relations between and among them."""
    draw = _Draw(4)
    data = HeteroData()
    for name, num_nodes in (('user', 30), ('item', 24), ('tag', 9)):
        data[name].x = draw.normal(num_nodes, 8)
    _connect(data, draw, 'user', 'rates', 'item', 120)
    _connect(data, draw, 'item', 'rated_by', 'user', 100)
    _connect(data, draw, 'user', 'knows', 'user', 80)
    _connect(data, draw, 'item', 'has', 'tag', 60)
    _connect(data, draw, 'tag', 'of', 'item', 50)
    return data


def hypergraph() -> HeteroData:
    """40 nodes in 12 hyperedges; the incidence is a relation between the two."""
    draw = _Draw(5)
    data = HeteroData()
    data['node'].x = draw.normal(40, 8)
    data['hyperedge'].x = draw.normal(12, 8)
    data['hyperedge'].weight = torch.rand(12, dtype=torch.float64, generator=draw.generator) + 0.1
    _connect(data, draw, 'node', 'in', 'hyperedge', 110)
    return data


GRAPHS: dict[str, Callable[[], Data | HeteroData]] = {
    'plain': plain,
    'sorted': in_order,
    'loops once': loops_once,
    'bipartite': bipartite,
    'hetero': hetero,
    'hypergraph': hypergraph,
    'papers': hetero_graph,
}


class _Draw:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=self.generator)

    def integers(self, high: int, num: int) -> Tensor:
        return torch.randint(high, (num,), generator=self.generator)


def _connect(data: HeteroData, draw: _Draw, src: str, rel: str, dst: str, num_edges: int) -> None:
    # The last node of either side has no edge.
    rows = draw.integers(data[src].x.size(0) - 1, num_edges)
    cols = draw.integers(data[dst].x.size(0) - 1, num_edges)
    store = data[src, rel, dst]
    store.edge_index = torch.stack([rows, cols])
    store.edge_weight = torch.rand(num_edges, dtype=torch.float64, generator=draw.generator) + 0.1
    store.edge_attr = draw.normal(num_edges, 4)
    store.edge_type = draw.integers(3, num_edges)
