"""Edges that programs make: both ways, joined, sorted, renamed, sparse matrices, other nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, MessagePassing, SAGEConv
from torch_geometric.utils import (
    add_self_loops,
    coalesce,
    degree,
    index_sort,
    k_hop_subgraph,
    scatter,
    sort_edge_index,
    subgraph,
    to_undirected,
)


def trained(
    data: Data, ddp: Ddp, model: Module, x: Tensor, edge_index: Tensor, *more: Tensor
) -> Results:
    """Three steps of a model on these edges; loss of the training nodes."""
    model = ddp(model.double())
    num = data.num_nodes

    def loss_of() -> Tensor:
        out = model(x, edge_index, *more)[:num]
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def net(num_in: int = 6) -> Net:
    torch.manual_seed(0)
    return Net(num_in, 8, 3)


class Weighted(Module):
    """Two layers whose messages have a weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = GCNConv(6, 8), GCNConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index, weight).relu(), edge_index, weight)


class Attributed(Module):
    """Attention that looks at attributes of edges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = GATConv(6, 4, heads=2, edge_dim=4)
        self.conv2 = GATConv(8, 3, edge_dim=4)

    def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index, attr).relu(), edge_index, attr)


def undirected_with_weights(data: Data, ddp: Ddp) -> Results:
    edge_index, weight = to_undirected(data.edge_index, data.edge_weight, reduce='mean')
    return {'sum': weight.sum()} | trained(data, ddp, Weighted(), data.x, edge_index, weight)


def undirected_with_attributes(data: Data, ddp: Ddp) -> Results:
    edge_index, attr = to_undirected(data.edge_index, data.edge_attr)
    return trained(data, ddp, Attributed(), data.x, edge_index, attr)


def both_ways_with_attributes(data: Data, ddp: Ddp) -> Results:
    edge_index = torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1)
    attr = torch.cat([data.edge_attr, -data.edge_attr])
    return trained(data, ddp, Attributed(), data.x, edge_index, attr)


def both_ways_by_ids(data: Data, ddp: Ddp) -> Results:
    row, col = data.edge_index
    edge_index = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    return trained(data, ddp, net(), data.x, edge_index)


def merged_edges(data: Data, ddp: Ddp) -> Results:
    edge_index, weight = coalesce(data.edge_index, data.edge_weight, reduce='max')
    return {'count': edge_index.size(1)} | trained(
        data, ddp, Weighted(), data.x, edge_index, weight
    )


def sorted_edges(data: Data, ddp: Ddp) -> Results:
    edge_index, attr = sort_edge_index(data.edge_index, data.edge_attr, sort_by_row=False)
    return trained(data, ddp, Attributed(), data.x, edge_index, attr)


def edges_by_order_of_weights(data: Data, ddp: Ddp) -> Results:
    """The heavier half of them."""
    order = data.edge_weight.argsort(descending=True)[: data.num_edges // 2]
    return trained(
        data, ddp, Weighted(), data.x, data.edge_index[:, order], data.edge_weight[order]
    )


def every_second_edge_turned(data: Data, ddp: Ddp) -> Results:
    turned = data.edge_weight > data.edge_weight.median()
    edge_index = torch.cat([data.edge_index[:, ~turned], data.edge_index[:, turned].flip(0)], 1)
    weight = torch.cat([data.edge_weight[~turned], data.edge_weight[turned]])
    return trained(data, ddp, Weighted(), data.x, edge_index, weight)


def edges_of_two_types_joined(data: Data, ddp: Ddp) -> Results:
    first, second = data.edge_type == 0, data.edge_type == 2
    edge_index = torch.cat([data.edge_index[:, first], data.edge_index[:, second]], dim=-1)
    weight = torch.cat([data.edge_weight[first], data.edge_weight[second] * 2])
    return trained(data, ddp, Weighted(), data.x, edge_index, weight)


@by_order
def ring_added(data: Data, ddp: Ddp) -> Results:
    """Every node with the next one, beside the edges."""
    ids = torch.arange(data.num_nodes)
    ring = torch.stack([ids, ids.roll(1)])
    return {'ring': ring.size(1)} | trained(
        data, ddp, net(), data.x, torch.cat([data.edge_index, ring], dim=1)
    )


def node_beside_all(data: Data, ddp: Ddp) -> Results:
    """A virtual node: one more row, joined with every other by edges."""
    num = data.num_nodes
    ids, all_to = torch.arange(num), torch.full((num,), num)
    more = torch.cat([torch.stack([ids, all_to]), torch.stack([all_to, ids])], dim=1)
    edge_index = torch.cat([data.edge_index, more], dim=1)
    x = torch.cat([data.x, data.x.mean(0, keepdim=True)])
    return {'nodes': x.size(0)} | trained(data, ddp, net(), x, edge_index)


def largest_degrees_only(data: Data, ddp: Ddp) -> Results:
    """The subgraph of nodes with many neighbours, ids renamed."""
    deg = degree(data.edge_index[1], data.num_nodes)
    keep = deg >= deg.median()
    edge_index, weight = subgraph(
        keep, data.edge_index, data.edge_weight, relabel_nodes=True, num_nodes=data.num_nodes
    )
    model, x, y = ddp(Weighted().double()), data.x[keep], data.y[keep]
    losses = descend(lambda: F.cross_entropy(model(x, edge_index, weight), y), model)
    return {'nodes': x.size(0), 'losses': losses, 'weights': weights(model)}


@by_order
def around_a_node(data: Data, ddp: Ddp) -> Results:
    """Two hops around a node, with names of their own."""
    subset, edge_index, place, mask = k_hop_subgraph(
        7, 2, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes
    )
    model = ddp(net().double())
    out = model(data.x[subset], edge_index)
    out[place].sum().backward()
    return {
        'subset': subset,
        'place': place,
        'count': mask.sum().item(),
        'out': out[place],
        'grad': [p.grad for p in model.parameters()],
    }


@by_order
def trained_around_nodes(data: Data, ddp: Ddp) -> Results:
    """Steps on the neighbourhood of three nodes."""
    subset, edge_index, place, _ = k_hop_subgraph(
        [1, 5, 9], 2, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes
    )
    model, x, y = ddp(net().double()), data.x[subset], data.y[subset]
    losses = descend(lambda: F.cross_entropy(model(x, edge_index)[place], y[place]), model)
    return {'losses': losses, 'weights': weights(model)}


def sparse_adjacency(data: Data, ddp: Ddp) -> Results:
    """GCN by hand, with a sparse matrix."""
    num = data.num_nodes
    edge_index, _ = add_self_loops(data.edge_index, num_nodes=num)
    row, col = edge_index
    norm = degree(col, num, dtype=torch.double).pow(-0.5)
    adj = torch.sparse_coo_tensor(torch.stack([col, row]), norm[row] * norm[col], (num, num))

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = Linear(6, 8), Linear(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return adj @ self.last((adj @ self.first(x)).relu())

    return trained(data, ddp, Model(), data.x, edge_index)


def sparse_powers(data: Data, ddp: Ddp) -> Results:
    """Features of three hops, computed once."""
    num = data.num_nodes
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), data.edge_weight, (num, num)).coalesce()
    x, hops = data.x, [data.x]
    for _ in range(2):
        x = torch.sparse.mm(adj, x) / 10
        hops.append(x)
    degrees = torch.sparse.sum(adj, dim=1).to_dense()
    torch.manual_seed(0)
    mlp = Linear(18, 3)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = mlp

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(x)

    return {'degrees': degrees} | trained(
        data, ddp, Model(), torch.cat(hops, dim=1), data.edge_index
    )


def power_iteration(data: Data, ddp: Ddp) -> Results:
    num = data.num_nodes
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), data.edge_weight, (num, num))
    v = data.x.new_ones(num)
    for _ in range(5):
        v = (adj @ v.view(-1, 1)).view(-1)
        v = v / v.norm()
    return {'v': v}


def learned_sparse_weights(data: Data, ddp: Ddp) -> Results:
    """Weights of edges are computed, and the matrix with them."""
    num = data.num_nodes

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gate, self.lin = Linear(4, 1), Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor) -> Tensor:
            gate = self.gate(attr).sigmoid().view(-1)
            adj = torch.sparse_coo_tensor(edge_index.flip(0), gate, (num, num))
            return torch.sparse.mm(adj, self.lin(x))

    return trained(data, ddp, Model(), data.x, data.edge_index, data.edge_attr)


def weights_outside_of_the_model(data: Data, ddp: Ddp) -> Results:
    """A plain parameter that the model never sees scales its inputs."""
    scale = Parameter(torch.ones(6, dtype=torch.double))
    model = ddp(net().double())

    def loss_of() -> Tensor:
        out = model(data.x * scale, data.edge_index)
        return F.cross_entropy(out, data.y) + 0.1 * (scale - 2).pow(2).sum()

    losses = descend(loss_of, [scale, *model.parameters()])
    return {'losses': losses, 'scale': scale, 'weights': weights(model)}


def message_passing_by_hand_both_ways(data: Data, ddp: Ddp) -> Results:
    class Conv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='mean')
            torch.manual_seed(0)
            self.there, self.back = Linear(6, 3), Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            loops = torch.arange(x.size(0)).repeat(2, 1)
            there = self.propagate(torch.cat([edge_index, loops], 1), x=self.there(x))
            back = self.propagate(torch.cat([edge_index.flip(0), loops], 1), x=self.back(x))
            return there + back

    return trained(data, ddp, Conv(), data.x, data.edge_index)


def undirected_in_the_forward(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv1, self.conv2 = SAGEConv(6, 8), SAGEConv(8, 3, aggr='max')

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            edge_index = to_undirected(edge_index, num_nodes=x.size(0))
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    return trained(data, ddp, Model(), data.x, data.edge_index)


def composed_with_undirected(data: Data, ddp: Ddp) -> Results:
    data = T.Compose([T.ToUndirected(), T.NormalizeFeatures(), T.AddSelfLoops()])(
        Data(x=data.x, y=data.y, train_mask=data.train_mask, edge_index=data.edge_index)
    )
    return {
        'undirected': data.is_undirected(),
        'isolated': data.has_isolated_nodes(),
        'coalesced': data.is_coalesced(),
    } | trained(data, ddp, net(), data.x, data.edge_index)


@by_order
def parents_by_sorted_ids(data: Data, ddp: Ddp) -> Results:
    """Sums of edges in the order of their destinations."""
    col, order = index_sort(data.edge_index[1])
    sums = scatter(data.edge_weight[order], col, dim_size=data.num_nodes, reduce='sum')
    return {'sums': sums, 'largest': col.max().item()}


@by_order
def rows_regrouped(data: Data, ddp: Ddp) -> Results:
    """Training nodes first, then the others: the edges mean the new places."""
    x = torch.cat([data.x[data.train_mask], data.x[~data.train_mask]])
    return trained(data, ddp, net(), x, data.edge_index)


@by_order
def rewired_at_random(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(5)
    edge_index = torch.stack([torch.randperm(data.num_nodes), torch.randperm(data.num_nodes)])
    return trained(data, ddp, net(), data.x, edge_index)


@by_order
def from_some_nodes_to_others(data: Data, ddp: Ddp) -> Results:
    """A bipartite graph of two selections of nodes."""
    src, dst = data.x[data.train_mask], data.x[~data.train_mask]
    torch.manual_seed(5)
    edge_index = torch.stack(
        [torch.randint(src.size(0), (150,)), torch.randint(dst.size(0), (150,))]
    )
    torch.manual_seed(0)
    model, y = ddp(SAGEConv((6, 6), 3).double()), data.y[~data.train_mask]
    losses = descend(lambda: F.cross_entropy(model((src, dst), edge_index), y), model)
    return {'losses': losses, 'weights': weights(model)}


def both_ends_at_once(data: Data, ddp: Ddp) -> Results:
    """x[edge_index], of shape [2, E, F]."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())

    def loss_of() -> Tensor:
        ends = model(data.x, data.edge_index)[data.edge_index]
        return (ends[0] - ends[1]).pow(2).mean() - ends.prod(dim=0).sum(-1).tanh().mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def nodes_that_edges_name(data: Data, ddp: Ddp) -> Results:
    ids = data.edge_index.unique()
    flat, counts = torch.unique(data.edge_index.flatten(), return_counts=True)
    return {
        'count': ids.numel(),
        'same': torch.equal(ids, flat),
        'most': counts.max().item(),
        'above': int(data.edge_index.max()) < data.num_nodes,
        'sum': data.x[ids].sum(0),
    }


@by_order
def edges_among_listed_nodes(data: Data, ddp: Ddp) -> Results:
    """Nodes of a list, edges between them, renamed by a table."""
    ids = torch.arange(0, data.num_nodes, 2)
    inside = torch.isin(data.edge_index, ids).all(dim=0)
    names = torch.full((data.num_nodes,), -1)
    names[ids] = torch.arange(ids.numel())
    edge_index = names[data.edge_index[:, inside]]
    x, y = data.x[ids], data.y[ids]
    model = ddp(net().double())
    losses = descend(lambda: F.cross_entropy(model(x, edge_index), y), model)
    return {'edges': edge_index.size(1), 'losses': losses, 'weights': weights(model)}


def masks_of_bytes(data: Data, ddp: Ddp) -> Results:
    mask, heavy = data.train_mask.byte(), (data.edge_weight > 0.5).byte()
    edge_index = data.edge_index[:, heavy.bool()]
    return {'rows': data.x[mask.bool()].sum(0)} | trained(data, ddp, net(), data.x, edge_index)


def least_of_targets(data: Data, ddp: Ddp) -> Results:
    """Extremes at the sources of edges."""
    row, col = data.edge_index
    torch.manual_seed(0)
    lin = ddp(Linear(6, 3).double())

    def loss_of() -> Tensor:
        h = lin(data.x)
        low = scatter(h[col], row, dim_size=data.num_nodes, reduce='min')
        high = scatter(h[col], row, dim_size=data.num_nodes, reduce='max')
        return F.cross_entropy(h + low - high, data.y)

    return {'losses': descend(loss_of, lin), 'weights': weights(lin)}


@by_order
def edges_dropped_by_plain_numbers(data: Data, ddp: Ddp) -> Results:
    """A mask of edges that is drawn for the whole graph, and weights of the rest."""
    torch.manual_seed(7)
    keep = torch.rand(data.num_edges) > 0.3
    weight = torch.rand(int(keep.sum()), dtype=torch.double)
    return trained(data, ddp, Weighted(), data.x, data.edge_index[:, keep], weight)


def matrix_that_is_scaled(data: Data, ddp: Ddp) -> Results:
    """Row-normalised, by sparse sums, in CSR."""
    num = data.num_nodes
    adj = torch.sparse_coo_tensor(data.edge_index.flip(0), data.edge_weight, (num, num)).coalesce()
    total = torch.sparse.sum(adj, dim=1).to_dense().clamp(min=1e-6)
    row, col = adj.indices()
    norm = torch.sparse_coo_tensor(adj.indices(), adj.values() / total[row], (num, num))
    csr = norm.to_sparse_csr()

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return csr @ (norm @ self.lin(x))

    return {'largest': int(col.max()) < num} | trained(data, ddp, Model(), data.x, data.edge_index)


def shares_of_neighbours_labels(data: Data, ddp: Ddp) -> Results:
    """Label propagation with a sparse matrix and one-hot labels."""
    num = data.num_nodes
    adj = torch.sparse_coo_tensor(
        data.edge_index.flip(0), torch.ones(data.num_edges, dtype=torch.double), (num, num)
    )
    hot = F.one_hot(data.y, 3).double() * data.train_mask.view(-1, 1)
    out = hot
    for _ in range(3):
        out = 0.9 * torch.sparse.mm(adj, out) / 8 + 0.1 * hot
    return {'out': out, 'right': (out.argmax(1) == data.y).double().mean()}
