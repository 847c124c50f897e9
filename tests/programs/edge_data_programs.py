"""Edges that are changed, made and chosen before training, with their weights and attributes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, named, programs
from three_steps import descend, fitted, model_of, trained, weights
from torch import Tensor
from torch.nn import Module, Parameter
from torch_geometric import transforms as T
from torch_geometric import utils as U
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, MessagePassing, SAGEConv

Edges = tuple[Any, Any]


class Weighted(Module):
    """Two layers that take weights of edges or none, or attributes by attention."""

    def __init__(self, normalize: bool = True) -> None:
        super().__init__()
        self.conv1, self.conv2 = (GCNConv(a, b, normalize=normalize) for a, b in ((6, 8), (8, 3)))
        self.att1, self.att2 = GATConv(6, 4, heads=2, edge_dim=4), GATConv(8, 3, edge_dim=4)

    def forward(self, x: Tensor, edge_index: Tensor, more: Tensor | None = None) -> Tensor:
        first, second = self.conv1, self.conv2
        if more is not None and more.dim() == 2:
            first, second = self.att1, self.att2
        return second(first(x, edge_index, more).relu(), edge_index, more)


def composed_with_undirected(data: Data) -> Edges:
    data = Data(x=data.x, edge_index=data.edge_index)
    chain = [T.RemoveSelfLoops(), T.ToUndirected(), T.NormalizeFeatures(), T.AddSelfLoops()]
    made = T.Compose(chain)(data)
    assert made.is_undirected()
    return made.edge_index, None


def every_second_edge_turned(data: Data) -> Edges:
    turned = data.edge_weight > data.edge_weight.median()
    edge_index = torch.cat([data.edge_index[:, ~turned], data.edge_index[:, turned].flip(0)], 1)
    return edge_index, torch.cat([data.edge_weight[~turned], data.edge_weight[turned]])


def edges_of_two_types_joined(data: Data) -> Edges:
    first, second = data.edge_type == 0, (data.edge_type == 2).nonzero(as_tuple=True)[0]
    edge_index = torch.cat([data.edge_index[:, first], data.edge_index[:, second]], dim=-1)
    return edge_index, torch.cat([data.edge_weight[first], data.edge_weight[second] * 2])


def heavy_edges(data: Data) -> Edges:
    mask = (data.edge_weight > data.edge_weight.mean()).byte().bool()
    return data.edge_index[:, mask], data.edge_attr[mask].abs().mean(dim=-1)


def edges_by_order_of_weights(data: Data) -> Edges:
    order = data.edge_weight.argsort(descending=True)[: data.num_edges // 2]
    return data.edge_index[:, order], data.edge_weight[order]


def both_ways_with_attributes(data: Data) -> Edges:
    row, col = data.edge_index
    edge_index = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    return edge_index, torch.cat([data.edge_attr, -data.edge_attr])


def degree_scaled_weights(data: Data) -> Edges:
    attr = (data.edge_attr - data.edge_attr.mean(0)) / data.edge_attr.std(0)
    return data.edge_index, attr.mean(-1).sigmoid()


def transform_gcn_norm(data: Data) -> Edges:
    data.edge_weight = None
    data = T.GCNNorm()(data)
    return data.edge_index, data.edge_weight.double()


EDGES: dict[str, Callable[[Data], Edges]] = {
    'self_loops_with_attributes': lambda data: U.add_remaining_self_loops(
        data.edge_index, data.edge_weight, 1.0
    ),
    'self_loops_of_mean_attributes': lambda data: U.add_remaining_self_loops(
        data.edge_index, data.edge_attr, fill_value='mean', num_nodes=data.num_nodes
    ),
    'undirected_with_attributes': lambda data: U.to_undirected(data.edge_index, data.edge_attr),
    'reversed_edges': lambda data: (data.edge_index.flip(0), data.edge_weight),
    'dropout_of_nothing': lambda data: (U.dropout_edge(data.edge_index, p=0.0)[0], None),
} | named(
    *(composed_with_undirected, both_ways_with_attributes, heavy_edges, edges_by_order_of_weights),
    *(every_second_edge_turned, edges_of_two_types_joined, degree_scaled_weights),
)


def with_edges(
    data: Data, ddp: Ddp, make: Callable[[Data], Edges], normalize: bool = True
) -> Results:
    torch.manual_seed(3)
    edge_index, more = make(data.clone())
    found = {'edges': edge_index.size(1), 'sum': None if more is None else more.sum(0)}
    inputs = data.x, edge_index, *([] if more is None else [more])
    return found | trained(data, ddp, lambda: Weighted(normalize), inputs=inputs)


PROGRAMS = programs(with_edges, EDGES)
PROGRAMS |= programs(partial(with_edges, normalize=False), named(transform_gcn_norm))


def on_rows(data: Data, ddp: Ddp, rows: Tensor, edge_index: Tensor, *weight: Tensor) -> Results:
    """Three steps on some of the nodes, which have new places."""
    x, y = data.x[rows], data.y[rows]
    model = model_of(ddp)
    found = fitted(lambda: F.cross_entropy(model(x, edge_index, *weight), y), model)
    return {'nodes': x.size(0)} | found


def subgraph_of_data(data: Data, ddp: Ddp) -> Results:
    """A smaller Data, nodes renamed; and the whole one in evaluation."""
    small = data.subgraph(data.train_mask | data.val_mask)
    model = model_of(ddp)

    def loss_of() -> Tensor:
        out = model(small.x, small.edge_index, small.edge_weight)
        return F.cross_entropy(out[small.train_mask], small.y[small.train_mask])

    losses = descend(loss_of, model)
    out = model(data.x, data.edge_index, data.edge_weight)
    return {'nodes': small.num_nodes, 'losses': losses, 'out': out, 'weights': weights(model)}


def isolated_nodes_removed(data: Data, ddp: Ddp) -> Results:
    edge_index, _, mask = U.remove_isolated_nodes(data.edge_index, num_nodes=data.num_nodes)
    return {'mask': mask} | on_rows(data, ddp, mask, edge_index)


def edges_among_listed_nodes(data: Data, ddp: Ddp) -> Results:
    """Nodes of a list, edges between them, renamed by a table."""
    ids = torch.arange(0, data.num_nodes, 2)
    inside = torch.isin(data.edge_index, ids).all(dim=0)
    names = torch.full((data.num_nodes,), -1)
    names[ids] = torch.arange(ids.numel())
    return on_rows(data, ddp, ids, names[data.edge_index[:, inside]])


def around_nodes(data: Data, ddp: Ddp) -> Results:
    """Hops around a node, some, and those of training, with names of their own."""
    found = {}
    for nodes in (7, [1, 5, 9], data.train_mask.nonzero().view(-1)):
        subset, edge_index, place, mask = U.k_hop_subgraph(
            nodes, 1, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes
        )
        x, y, model = data.x[subset], data.y[subset], model_of(ddp)
        losses = descend(
            lambda x=x, y=y, e=edge_index, p=place, model=model: F.cross_entropy(
                model(x, e)[p], y[p]
            ),
            model,
        )
        found[str(len(found))] = [subset, place, mask.sum().item(), losses, weights(model)]
    return found


def node_beside_all(data: Data, ddp: Ddp) -> Results:
    """A virtual node: one more row, joined with every other by edges."""
    num = data.num_nodes
    ids, all_to = torch.arange(num), torch.full((num,), num)
    more = torch.cat([torch.stack([ids, all_to]), torch.stack([all_to, ids])], dim=1)
    edge_index = torch.cat([data.edge_index, more], dim=1)
    x = torch.cat([data.x, data.x.mean(0, keepdim=True)])
    model = model_of(ddp)
    found = fitted(lambda: F.cross_entropy(model(x, edge_index)[:num], data.y), model)
    return {'nodes': x.size(0)} | found


def both_ends_at_once(data: Data, ddp: Ddp) -> Results:
    """x[edge_index], of shape [2, E, F]."""

    def loss(out: Tensor) -> Tensor:
        ends = out[data.edge_index]
        return (ends[0] - ends[1]).pow(2).mean() - ends.prod(dim=0).sum(-1).tanh().mean()

    return trained(data, ddp, loss=loss)


def what_utils_say(data: Data, ddp: Ddp) -> Results:
    e, n = data.edge_index, data.num_nodes
    lap, weight = U.get_laplacian(e, data.edge_weight, 'rw', num_nodes=n)
    ids, (flat, most) = e.unique(), torch.unique(e.flatten(), return_counts=True)
    sorted_index, attr = U.sort_edge_index(e, data.edge_weight, num_nodes=n)
    col, order = U.index_sort(e[1])
    return {
        'edges': [data.num_edges, data.num_edges / n, e[:, :5], e[0, :3].tolist()],
        'undirected': U.is_undirected(e, num_nodes=n),
        'loops': [U.contains_self_loops(e), data.has_self_loops()],
        'isolated': [U.contains_isolated_nodes(e, n), data.has_isolated_nodes()],
        'homophily': [
            U.homophily(e, data.y, method=m) for m in ('edge', 'node', 'edge_insensitive')
        ],
        'unique': U.coalesce(e, num_nodes=n).size(1),
        'both': U.to_undirected(e, num_nodes=n).size(1),
        'lap': U.scatter(weight, lap[1], 0, n),
        'ids': [ids.numel(), torch.equal(ids, flat), most.max().item(), int(e.max()) < n],
        'rows': data.x[ids].sum(0),
        'sorted': [sorted_index[:, :5], attr.sum().item(), col.max().item()],
        'by destination': U.scatter(data.edge_weight[order], col, dim_size=n, reduce='sum'),
        'degrees': U.degree(e[0], n).long().bincount(),
    }


def one_layer_both_ways(data: Data, ddp: Ddp) -> Results:
    """Edges turned round by rows, with loops of ids, and made undirected in the forward."""

    class Conv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='mean')
            self.there, self.back = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
            self.also, self.largest = SAGEConv(6, 3), SAGEConv(6, 3, aggr='max')

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            ids = torch.arange(x.size(0)).repeat(2, 1)
            there = self.propagate(torch.cat([edge_index, ids], 1), x=self.there(x))
            back = self.propagate(torch.cat([edge_index.flip(0), ids], 1), x=self.back(x))
            both = U.to_undirected(edge_index, num_nodes=x.size(0))
            return there + back + self.also(x, edge_index[[1, 0]]) + self.largest(x, both)

    return trained(data, ddp, Conv)


def weights_outside_of_the_model(data: Data, ddp: Ddp) -> Results:
    """An explainer by hand: a number for every edge and column; the model is trained before."""
    model = model_of(ddp)
    losses = descend(lambda: F.cross_entropy(model(data.x, data.edge_index), data.y), model)
    mask = Parameter(torch.linspace(-1, 1, data.num_edges, dtype=torch.double))
    scale = Parameter(torch.ones(6, dtype=torch.double))

    def loss_of() -> Tensor:
        weight = mask.sigmoid()
        out = model(data.x * scale, data.edge_index, weight)
        return F.cross_entropy(out, data.y) + 0.01 * weight.sum() + (scale - 2).pow(2).sum()

    losses += descend(loss_of, [mask, scale], lr=0.1)
    return {'losses': losses, 'sum': mask.sum(), 'scale': scale}


def edges_weighted_anew_every_epoch(data: Data, ddp: Ddp) -> Results:
    """Weights by similarity of what the last epoch gave, and a mask of edges by bernoulli."""
    model = model_of(ddp)
    weight, losses = None, []
    for _ in range(3):
        keep = torch.bernoulli(torch.full((data.num_edges,), 0.7)).bool()
        out = model(data.x, data.edge_index[:, keep], None if weight is None else weight[keep])
        losses.append(F.cross_entropy(out, data.y))
        losses[-1].backward()
        with torch.no_grad():
            z = F.normalize(out, dim=-1)
            row, col = data.edge_index
            weight = (z[row] * z[col]).sum(-1).clamp(min=0) + 0.1
    return {'losses': losses, 'weight': weight, 'grad': [p.grad for p in model.parameters()]}
