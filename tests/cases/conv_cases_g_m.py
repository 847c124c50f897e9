"""Configurations of PyG's convs on a graph of one node type: G to M."""

from __future__ import annotations

from typing import Any

import torch
from conv_calls import (
    ATTR,
    WEIGHT,
    fixed_weight,
    knn,
    mlp,
    of_points,
    twice,
    with_attention,
    x_and_x_0,
)
from conv_case import Case, takes
from conv_graphs import NUM_NODE_TYPES
from torch_geometric.nn import conv


def _gcn(**kwargs: Any) -> torch.nn.Module:
    return conv.GCNConv(8, 6, **kwargs)


CASES = [
    Case('GATConv', 'one head', lambda: conv.GATConv(8, 6)),
    Case('GATConv', '3 heads, no self loops', lambda: conv.GATConv(8, 5, 3, add_self_loops=False)),
    Case('GATConv', 'edge features', lambda: conv.GATConv(8, 5, 3, edge_dim=4), ATTR),
    Case('GATConv', 'fill_value=max', lambda: _gat(edge_dim=4, fill_value='max'), ATTR),
    Case('GATConv', 'concat=False, residual', lambda: _gat(concat=False, residual=True)),
    Case('GATConv', 'residual, no bias', lambda: _gat(residual=True, bias=False)),
    Case('GATConv', 'dropout, eval', lambda: _gat(dropout=0.5).eval()),
    Case('GATConv', 'attention weights', lambda: _gat(edge_dim=4), with_attention('edge_attr')),
    Case('GATConv', 'aggr=max', lambda: _gat(aggr='max')),
    Case('GATv2Conv', '3 heads', lambda: conv.GATv2Conv(8, 5, 3)),
    Case('GATv2Conv', 'edge features', lambda: conv.GATv2Conv(8, 5, 3, edge_dim=4), ATTR),
    Case(
        'GATv2Conv', 'shared weights, residual', lambda: _gatv2(share_weights=True, residual=True)
    ),
    Case('GATv2Conv', 'concat=False, no loops', lambda: _gatv2(concat=False, add_self_loops=False)),
    Case('GATv2Conv', 'attention weights', lambda: _gatv2(edge_dim=4), with_attention('edge_attr')),
    Case('GCN2Conv', 'theta', lambda: conv.GCN2Conv(8, 0.1, 0.5, 1), x_and_x_0('edge_weight')),
    Case('GCN2Conv', 'two weights', lambda: _gcn2(shared_weights=False), x_and_x_0()),
    Case('GCN2Conv', 'normalize=False', lambda: _gcn2(normalize=False), x_and_x_0('edge_weight')),
    Case('GCNConv', 'default', _gcn),
    Case('GCNConv', 'fixed weights', _gcn, fixed_weight),
    Case('GCNConv', 'learnable weights', _gcn, WEIGHT),
    Case('GCNConv', 'improved', lambda: _gcn(improved=True), WEIGHT),
    Case('GCNConv', 'no self loops', lambda: _gcn(add_self_loops=False, bias=False), WEIGHT),
    Case('GCNConv', 'normalize=False', lambda: _gcn(normalize=False), WEIGHT),
    Case('GCNConv', 'cached', lambda: _gcn(cached=True), twice),
    Case('GCNConv', 'aggr=max', lambda: _gcn(aggr='max')),
    Case('GCNConv', 'flow=target_to_source', lambda: _gcn(flow='target_to_source'), WEIGHT),
    Case('GENConv', 'softmax', lambda: conv.GENConv(8, 6)),
    Case('GENConv', 'softmax, learnable t', lambda: _gen(t=0.7, learn_t=True), ATTR),
    Case('GENConv', 'softmax_sg', lambda: _gen(aggr='softmax_sg', t=0.7), ATTR),
    Case('GENConv', 'power, learnable p', lambda: _gen(aggr='power', p=1.3, learn_p=True), ATTR),
    Case('GENConv', 'add, layer norm', lambda: _gen(aggr='add', norm='layer'), ATTR),
    Case('GENConv', 'add, batch norm', lambda: _gen(aggr='add'), ATTR),
    Case('GENConv', 'max, msg_norm', lambda: _gen(aggr='max', msg_norm=True, norm=None), ATTR),
    Case('GENConv', 'softmax and max', lambda: _gen(aggr=['softmax', 'max']), ATTR),
    Case('GINConv', 'eps', lambda: conv.GINConv(mlp(8, 6), 0.3)),
    Case('GINConv', 'learnable eps', lambda: conv.GINConv(mlp(8, 6), train_eps=True)),
    Case('GINConv', 'batch norm', lambda: conv.GINConv(_mlp_with_norm())),
    Case('GINEConv', 'edge features', lambda: conv.GINEConv(mlp(8, 6), edge_dim=4), ATTR),
    Case('GMMConv', 'default', lambda: conv.GMMConv(8, 6, 4, 2), ATTR),
    Case('GMMConv', 'separate', lambda: conv.GMMConv(8, 6, 4, 2, True, 'add', bias=False), ATTR),
    Case('GPSConv', 'GCN', lambda: conv.GPSConv(8, conv.GCNConv(8, 8), 2)),
    Case('GatedGraphConv', '2 layers', lambda: conv.GatedGraphConv(8, 2)),
    Case('GatedGraphConv', 'weights', lambda: conv.GatedGraphConv(10, 2, 'mean'), WEIGHT),
    Case('GeneralConv', 'plain', lambda: conv.GeneralConv(8, 6)),
    Case('GeneralConv', 'edge features', lambda: conv.GeneralConv(8, 6, 4, 'max'), ATTR),
    Case(
        'GeneralConv',
        'both ends, l2',
        lambda: _general(directed_msg=False, l2_normalize=True),
        ATTR,
    ),
    Case('GeneralConv', 'additive attention', lambda: _general(attention=True, heads=2), ATTR),
    Case(
        'GeneralConv',
        'dot product',
        lambda: _general(attention=True, heads=2, attention_type='dot_product', skip_linear=True),
        ATTR,
    ),
    Case('GraphConv', 'add', lambda: conv.GraphConv(8, 6)),
    Case('GraphConv', 'mean, fixed weights', lambda: conv.GraphConv(8, 6, 'mean'), fixed_weight),
    Case('GraphConv', 'learnable weights', lambda: conv.GraphConv(8, 6, bias=False), WEIGHT),
    Case('GraphConv', 'min, weights', lambda: conv.GraphConv(8, 6, 'min'), WEIGHT),
    Case('GravNetConv', '', lambda: conv.GravNetConv(8, 6, 2, 4, 3), of_points, during=knn),
    Case('HEATConv', 'concat', lambda: _heat(), takes('node_type', 'edge_type', 'edge_attr')),
    Case(
        'HEATConv',
        'mean',
        lambda: _heat(concat=False, root_weight=False),
        takes('node_type', 'edge_type', 'edge_attr'),
    ),
    Case('LEConv', 'no weights', lambda: conv.LEConv(8, 6)),
    Case('LEConv', 'weights', lambda: conv.LEConv(8, 6, bias=False), WEIGHT),
    Case('LGConv', 'normalized', lambda: conv.LGConv()),
    Case('LGConv', 'normalize=False', lambda: conv.LGConv(False), WEIGHT),
    Case('MFConv', 'default', lambda: conv.MFConv(8, 6)),
    Case('MFConv', 'max_degree=3', lambda: conv.MFConv(8, 6, 3, False)),
    Case('MeshCNNConv', 'default', lambda: conv.MeshCNNConv(8, 6)),
    Case('MixHopConv', 'default', lambda: conv.MixHopConv(8, 6)),
    Case('MixHopConv', 'powers 1 and 3', lambda: conv.MixHopConv(8, 6, [1, 3], False), WEIGHT),
]


def _mlp_with_norm() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 7), torch.nn.BatchNorm1d(7), torch.nn.ReLU(), torch.nn.Linear(7, 6)
    )


def _gat(**kwargs: Any) -> torch.nn.Module:
    return conv.GATConv(8, 5, 3, **kwargs)


def _gatv2(**kwargs: Any) -> torch.nn.Module:
    return conv.GATv2Conv(8, 5, 3, **kwargs)


def _gcn2(**kwargs: Any) -> torch.nn.Module:
    return conv.GCN2Conv(8, 0.1, **kwargs)


def _gen(**kwargs: Any) -> torch.nn.Module:
    return conv.GENConv(8, 6, edge_dim=4, **kwargs)


def _general(**kwargs: Any) -> torch.nn.Module:
    return conv.GeneralConv(8, 6, 4, **kwargs)


def _heat(**kwargs: Any) -> torch.nn.Module:
    return conv.HEATConv(8, 6, NUM_NODE_TYPES, 3, 3, 4, 5, heads=2, **kwargs)
