"""Small graphs, drawn, in place of those that PyG's examples download.

    python examples/pyg/graphs.py citations graph.pt
    python examples/pyg/graphs.py ratings graph.pt beside.pt

What has no row per node or edge (pairs of nodes, a number per molecule) goes to a second file.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import GCNNorm, ToUndirected
from torch_geometric.utils import to_dense_adj, to_undirected


def citations(num_nodes: int = 300) -> Data:
    """Nodes that like their own class, in place of Cora, ogbn-arxiv, ogbn-products and Reddit."""
    y = torch.randint(4, (num_nodes,))
    ends = torch.randint(num_nodes, (2, 20 * num_nodes))
    is_edge = (torch.rand(ends.size(1)) < 0.02) | (y[ends[0]] == y[ends[1]])
    return Data(
        x=F.one_hot(y, 16) + torch.randn(num_nodes, 16),
        edge_index=to_undirected(ends[:, is_edge & (ends[0] != ends[1])]),
        y=y,
        num_classes=4,
        **_masks(num_nodes),
    )


def normalized_citations() -> Data:
    """The same with the weights of GCNConv on the edges, self loops added."""
    return GCNNorm()(citations())


def citations_and_links() -> tuple[Data, dict[str, Tensor]]:
    """Without some edges; pairs of a test, half of them with an edge."""
    data = citations()
    has_edge = to_dense_adj(data.edge_index)[0] > 0
    links, others = (
        pairs[:, torch.randperm(pairs.size(1))]
        for pairs in (has_edge.triu().nonzero().t(), (~has_edge).triu(1).nonzero().t())
    )
    num_test = links.size(1) // 10
    data.edge_index = to_undirected(links[:, num_test:])
    test = torch.cat([links[:, :num_test], others[:, :num_test]], dim=1)
    return data, {'test': test}


def papers() -> HeteroData:
    """Authors, papers and conferences, in place of DBLP."""
    data, sizes = HeteroData(), {'author': 120, 'paper': 240, 'conference': 4}
    topics = {name: torch.randint(4, (size,)) for name, size in sizes.items()}
    for name in ('author', 'paper'):
        data[name].x = F.one_hot(topics[name], 12) + torch.randn(sizes[name], 12)
    data['conference'].x = torch.ones(4, 1)
    data['author'].y, data['author'].num_classes = topics['author'], 4
    for name, mask in _masks(sizes['author']).items():
        data['author'][name] = mask
    for src, dst in (('author', 'paper'), ('paper', 'conference')):
        ends = torch.stack([torch.randint(sizes[name], (2000,)) for name in (src, dst)])
        data[src, 'to', dst].edge_index = ends[:, topics[src][ends[0]] == topics[dst][ends[1]]]
    return ToUndirected()(data)


def entities(num_nodes: int = 200) -> Data:
    """Relations between nodes without features, of which some have a class, in place of AIFB."""
    y, edge_index = torch.randint(4, (num_nodes,)), torch.randint(num_nodes, (2, 2000))
    train_idx, test_idx, _ = torch.randperm(num_nodes).split([80, 40, num_nodes - 120])
    data = Data(edge_index=edge_index, y=y, train_idx=train_idx, test_idx=test_idx)
    data.edge_type = (y[edge_index[0]] + y[edge_index[1]]) % 5
    data.num_nodes, data.num_classes, data.num_relations = num_nodes, 4, 5
    return data


def molecules(num_graphs: int = 40) -> tuple[Data, Tensor]:
    """Rings of atoms side by side in one graph, and a number of each, in place of ZINC."""
    rings, y = [], []
    for size in torch.randint(3, 9, (num_graphs,)).tolist():
        atoms, nodes = torch.randint(5, (size,)), torch.arange(size)
        edge_index = to_undirected(torch.stack([nodes, (nodes + 1) % size]))
        rings.append(Data(x=atoms, edge_index=edge_index, edge_attr=edge_index.sum(dim=0) % 3))
        y.append((atoms == 0).sum() - size / 4)
    all_rings = Batch.from_data_list(rings)
    names = 'x', 'edge_index', 'edge_attr', 'batch'
    return Data(**{name: all_rings[name] for name in names}), torch.stack(y)


def ratings(num_users: int = 60, num_books: int = 40) -> tuple[Data, dict[str, Tensor]]:
    """Users, then books; who rated what, in training and in test, in place of AmazonBook."""
    taste, subject = torch.randint(4, (num_users,)), torch.randint(4, (num_books,))
    likes = (taste[:, None] == subject) & (torch.rand(num_users, num_books) < 0.8)
    pairs = likes.nonzero().t() + torch.tensor([[0], [num_users]])
    is_test = torch.rand(pairs.size(1)) < 0.2
    data = Data(edge_index=to_undirected(pairs[:, ~is_test]), num_users=num_users)
    data.num_nodes = num_users + num_books
    return data, {'train': pairs[:, ~is_test], 'test': pairs[:, is_test]}


def trust(num_nodes: int = 150) -> tuple[Data, dict[str, Tensor]]:
    """Who trusts or distrusts whom (edge_sign), and pairs of a test, in place of BitcoinOTC."""
    camp = torch.randint(2, (num_nodes,))
    pairs = torch.randint(num_nodes, (2, 1200)).unique(dim=1)
    sign = torch.where(camp[pairs[0]] == camp[pairs[1]], 1, -1)
    is_test = torch.rand(sign.numel()) < 0.2
    x = F.one_hot(camp, 8) + torch.randn(num_nodes, 8)
    data = Data(x=x, edge_index=pairs[:, ~is_test], edge_sign=sign[~is_test])
    return data, {'pairs': pairs[:, is_test], 'sign': sign[is_test]}


def _masks(num_nodes: int) -> dict[str, Tensor]:
    share = torch.rand(num_nodes)
    train, val = share < 0.5, (share >= 0.5) & (share < 0.75)
    return {'train_mask': train, 'val_mask': val, 'test_mask': ~(train | val)}


def draw(name: str) -> Any:
    """One of these graphs, always the same, and what belongs beside it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return globals()[name]()


def main(name: str, *paths: str) -> None:
    """Saves a graph, and what belongs beside it."""
    found = draw(name)
    for value, path in zip(found if isinstance(found, tuple) else (found,), paths, strict=True):
        torch.save(value, path)


if __name__ == '__main__':
    main(*sys.argv[1:])
