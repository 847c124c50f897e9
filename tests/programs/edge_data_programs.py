"""Edges made ready before training: masked, looped, weighted by degrees, counted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    contains_isolated_nodes,
    contains_self_loops,
    degree,
    dropout_edge,
    get_laplacian,
    is_undirected,
    k_hop_subgraph,
    remove_self_loops,
    subgraph,
    to_undirected,
)


class Weighted(torch.nn.Module):
    """Two layers that take weights of edges."""

    def __init__(self, normalize: bool = True, num_in: int = 6) -> None:
        super().__init__()
        self.conv1 = GCNConv(num_in, 8, normalize=normalize)
        self.conv2 = GCNConv(8, 3, normalize=normalize)

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.conv2(self.conv1(x, edge_index, weight).relu(), edge_index, weight)


def trained(
    data: Data, ddp: Ddp, edge_index: Tensor, *weight: Tensor, normalize: bool = True
) -> Results:
    """Three steps with these edges."""
    torch.manual_seed(0)
    model = ddp(Weighted(normalize, data.num_features).double())

    def loss_of() -> Tensor:
        out = model(data.x, edge_index, *weight)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def self_loops_added(data: Data, ddp: Ddp) -> Results:
    edge_index, _ = remove_self_loops(data.edge_index)
    edge_index, _ = add_self_loops(edge_index, num_nodes=data.num_nodes)
    return {'edges': edge_index.size(1)} | trained(data, ddp, edge_index)


@by_order
def self_loops_with_attributes(data: Data, ddp: Ddp) -> Results:
    """Without `num_nodes`: as many nodes as the largest id of an edge says."""
    edge_index, weight = add_remaining_self_loops(data.edge_index, data.edge_weight, 1.0)
    return {'sum': weight.sum().item()} | trained(data, ddp, edge_index, weight)


def self_loops_removed(data: Data, ddp: Ddp) -> Results:
    data.edge_index, data.edge_attr = remove_self_loops(data.edge_index, data.edge_attr)
    row, col = data.edge_index
    weight = data.edge_attr.norm(dim=-1)
    return {'none': (row == col).any().item()} | trained(data, ddp, data.edge_index, weight)


def self_loops_removed_by_mask(data: Data, ddp: Ddp) -> Results:
    mask = data.edge_index[0] != data.edge_index[1]
    edge_index, weight = data.edge_index[:, mask], data.edge_weight[mask]
    return {'kept': mask} | trained(data, ddp, edge_index, weight)


def transform_add_self_loops(data: Data, ddp: Ddp) -> Results:
    data = T.Compose([T.RemoveSelfLoops(), T.AddSelfLoops()])(data)
    return trained(data, ddp, data.edge_index)


def transform_to_undirected(data: Data, ddp: Ddp) -> Results:
    data = T.ToUndirected()(
        Data(x=data.x, y=data.y, train_mask=data.train_mask, edge_index=data.edge_index)
    )
    return {'edges': data.num_edges} | trained(data, ddp, data.edge_index)


def undirected_by_function(data: Data, ddp: Ddp) -> Results:
    edge_index = to_undirected(data.edge_index)
    return {'count': edge_index.size(1)} | trained(data, ddp, edge_index)


def reversed_edges(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, data.edge_index.flip(0), data.edge_weight)


def both_directions_by_cat(data: Data, ddp: Ddp) -> Results:
    edge_index = torch.cat([data.edge_index, data.edge_index.flip([0])], dim=1)
    return trained(data, ddp, edge_index)


def heavy_edges(data: Data, ddp: Ddp) -> Results:
    """Edges above the mean weight, with their attributes."""
    mask = data.edge_weight > data.edge_weight.mean()
    weight = data.edge_attr[mask].abs().mean(dim=-1)
    return {'count': int(mask.sum())} | trained(data, ddp, data.edge_index[:, mask], weight)


def edges_of_a_type(data: Data, ddp: Ddp) -> Results:
    results = {}
    for edge_type in range(3):
        chosen = (data.edge_type == edge_type).nonzero(as_tuple=True)[0]
        results[str(edge_type)] = trained(data, ddp, data.edge_index[:, chosen])
    return results


def edges_between_training_nodes(data: Data, ddp: Ddp) -> Results:
    src, dst = data.edge_index
    mask = data.train_mask[src] & data.train_mask[dst]
    return {'mask': mask} | trained(data, ddp, data.edge_index[:, mask])


def induced_subgraph(data: Data, ddp: Ddp) -> Results:
    edge_index, weight = subgraph(
        data.train_mask, data.edge_index, data.edge_weight, num_nodes=data.num_nodes
    )
    return {'count': weight.numel()} | trained(data, ddp, edge_index, weight)


def subgraph_of_data(data: Data, ddp: Ddp) -> Results:
    """A smaller Data, nodes renamed."""
    small = data.subgraph(data.train_mask | data.val_mask)
    return {'nodes': small.num_nodes} | trained(small, ddp, small.edge_index, small.edge_weight)


@by_order
def neighbours_of_a_node(data: Data, ddp: Ddp) -> Results:
    subset, edge_index, _, mask = k_hop_subgraph(4, 2, data.edge_index, num_nodes=data.num_nodes)
    return {'nodes': subset.numel(), 'edges': edge_index.size(1), 'mask': mask.sum().item()}


def dropout_of_nothing(data: Data, ddp: Ddp) -> Results:
    edge_index, mask = dropout_edge(data.edge_index, p=0.0, training=True)
    return {'all': mask.all().item()} | trained(data, ddp, edge_index)


@by_order
def edges_dropped_by_rand(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(3)
    keep = torch.rand(data.edge_index.size(1)) >= 0.3
    return {'kept': keep.sum().item()} | trained(data, ddp, data.edge_index[:, keep])


def gcn_norm_before_training(data: Data, ddp: Ddp) -> Results:
    edge_index, weight = gcn_norm(data.edge_index, None, data.num_nodes, dtype=data.x.dtype)
    return trained(data, ddp, edge_index, weight, normalize=False)


def norm_by_hand(data: Data, ddp: Ddp) -> Results:
    row, col = data.edge_index
    deg = degree(col, data.num_nodes, dtype=torch.double)
    inv = deg.pow(-0.5).masked_fill_(deg == 0, 0.0)
    weight = inv[row] * inv[col]
    result = trained(data, ddp, data.edge_index, weight, normalize=False)
    return {'deg': deg, 'weight': weight} | result


def transform_gcn_norm(data: Data, ddp: Ddp) -> Results:
    data.edge_weight = None
    data = T.GCNNorm()(data)
    return trained(data, ddp, data.edge_index, data.edge_weight.double(), normalize=False)


def laplacian_filter(data: Data, ddp: Ddp) -> Results:
    edge_index, weight = get_laplacian(
        data.edge_index, normalization='sym', num_nodes=data.num_nodes, dtype=torch.double
    )
    return trained(data, ddp, edge_index, weight, normalize=False)


def degree_as_feature(data: Data, ddp: Ddp) -> Results:
    deg = degree(data.edge_index[1], data.num_nodes, dtype=data.x.dtype)
    data.deg = deg
    data.x = torch.cat([data.x, (data.deg / data.deg.max()).view(-1, 1)], dim=-1)
    return {'deg': deg} | trained(data, ddp, data.edge_index)


def degrees_by_bincount(data: Data, ddp: Ddp) -> Results:
    out_deg = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    in_deg = data.edge_index[1].bincount(minlength=data.num_nodes)
    deg = torch.stack([out_deg, in_deg], dim=-1).double().log1p()
    data.x = torch.cat([data.x, deg - deg.mean(0)], dim=-1)
    histogram = torch.bincount(in_deg)
    return {'histogram': histogram, 'deg': deg} | trained(data, ddp, data.edge_index)


def one_hot_degree(data: Data, ddp: Ddp) -> Results:
    deg = degree(data.edge_index[1], data.num_nodes, dtype=torch.long).clamp(max=6)
    data.x = torch.cat([data.x, F.one_hot(deg, num_classes=7).to(data.x.dtype)], dim=-1)
    return trained(data, ddp, data.edge_index)


def transform_local_degree_profile(data: Data, ddp: Ddp) -> Results:
    data = T.LocalDegreeProfile()(data)
    data.x = data.x.double()
    return trained(data, ddp, data.edge_index)


def what_data_says(data: Data, ddp: Ddp) -> Results:
    return {
        'edges': data.num_edges,
        'average degree': data.num_edges / data.num_nodes,
        'undirected': is_undirected(data.edge_index, num_nodes=data.num_nodes),
        'loops': contains_self_loops(data.edge_index),
        'has loops': data.has_self_loops(),
        'isolated': contains_isolated_nodes(data.edge_index, data.num_nodes),
        'has isolated': data.has_isolated_nodes(),
    }


def degree_scaled_weights(data: Data, ddp: Ddp) -> Results:
    """Attributes standardised over all edges become weights."""
    attr = (data.edge_attr - data.edge_attr.mean(0)) / data.edge_attr.std(0)
    weight = attr.mean(-1).sigmoid()
    return {'weight': weight} | trained(data, ddp, data.edge_index, weight)


def sage_on_transposed_and_plain(data: Data, ddp: Ddp) -> Results:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.forth, self.back = SAGEConv(6, 3), SAGEConv(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.forth(x, edge_index) + self.back(x, edge_index[[1, 0]])

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: F.cross_entropy(model(data.x, data.edge_index), data.y), model)
    return {'losses': losses, 'weights': weights(model)}


def net_without_edges(data: Data, ddp: Ddp) -> Results:
    """What a model is worth without the graph."""
    empty = data.edge_index[:, :0]
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    losses = descend(lambda: F.cross_entropy(model(data.x, empty), data.y), model)
    return {'losses': losses, 'weights': weights(model)}
