"""Configurations of PyG's convs on a graph of one node type: A to F."""

from __future__ import annotations

from typing import Any

import torch
from conv_calls import (
    ATTR,
    TYPE,
    WEIGHT,
    fa_with_attention,
    fixed_weight,
    knn,
    mlp,
    of_points,
    stacked,
    stacked_with_weights,
    x_and_x_0,
)
from conv_case import Case, built_or_bare
from torch_geometric.nn import conv

CASES = [
    Case('AGNNConv', 'learnable beta', lambda: conv.AGNNConv()),
    Case('AGNNConv', 'fixed beta, no self loops', lambda: conv.AGNNConv(False, False)),
    Case('APPNP', 'K=3', lambda: conv.APPNP(3, 0.1)),
    Case('APPNP', 'fixed weights', lambda: conv.APPNP(2, 0.1), fixed_weight),
    Case('APPNP', 'learnable weights', lambda: conv.APPNP(2, 0.1), WEIGHT),
    Case('APPNP', 'no self loops', lambda: conv.APPNP(2, 0.1, add_self_loops=False)),
    Case('APPNP', 'normalize=False', lambda: conv.APPNP(2, 0.1, normalize=False), WEIGHT),
    Case('ARMAConv', 'one stack', lambda: conv.ARMAConv(8, 6)),
    Case('ARMAConv', '2 stacks of 2, weights', lambda: conv.ARMAConv(8, 6, 2, 2), WEIGHT),
    Case('ARMAConv', 'shared weights', lambda: conv.ARMAConv(8, 6, 2, 3, True, bias=False)),
    Case('AntiSymmetricConv', 'GCN', lambda: conv.AntiSymmetricConv(8)),
    Case(
        'AntiSymmetricConv',
        'GAT, 2 steps',
        lambda: conv.AntiSymmetricConv(8, conv.GATConv(8, 8), 2),
    ),
    Case('CGConv', 'no edge features', lambda: conv.CGConv(8)),
    Case('CGConv', 'edge features', lambda: conv.CGConv(8, 4), ATTR),
    Case('CGConv', 'aggr=max, batch norm', lambda: conv.CGConv(8, 4, 'max', True), ATTR),
    Case('ChebConv', 'K=1', lambda: conv.ChebConv(8, 6, 1)),
    Case('ChebConv', 'K=3, sym, weights', lambda: conv.ChebConv(8, 6, 3), WEIGHT),
    Case('ChebConv', 'rw', lambda: conv.ChebConv(8, 6, 3, 'rw')),
    Case(
        'ChebConv',
        'no normalisation, lambda_max given',
        lambda: conv.ChebConv(8, 6, 3, None),
        lambda m, d: m(d.x, d.edge_index, lambda_max=torch.tensor(7.0, device=d.x.device)),
    ),
    Case('ChebConv', 'no normalisation', lambda: conv.ChebConv(8, 6, 3, None), fixed_weight),
    Case('ClusterGCNConv', 'self loops', lambda: conv.ClusterGCNConv(8, 6, 0.3)),
    Case('CuGraphGATConv', '', lambda: built_or_bare(conv.CuGraphGATConv, 8, 6)),
    Case('CuGraphRGCNConv', '', lambda: built_or_bare(conv.CuGraphRGCNConv, 8, 6, 3)),
    Case('CuGraphSAGEConv', '', lambda: built_or_bare(conv.CuGraphSAGEConv, 8, 6)),
    Case('DNAConv', '2 heads', lambda: conv.DNAConv(8, heads=2), stacked),
    Case('DNAConv', 'groups', lambda: conv.DNAConv(8, heads=2, groups=4, bias=False), stacked),
    Case(
        'DNAConv', 'normalize=False', lambda: conv.DNAConv(8, normalize=False), stacked_with_weights
    ),
    Case('DirGNNConv', 'GCN', lambda: conv.DirGNNConv(conv.GCNConv(8, 6))),
    Case('DirGNNConv', 'SAGE, alpha=0.2', lambda: conv.DirGNNConv(conv.SAGEConv(8, 6), 0.2)),
    Case('DirGNNConv', 'GAT', lambda: conv.DirGNNConv(conv.GATConv(8, 6), root_weight=False)),
    Case('DynamicEdgeConv', '', lambda: conv.DynamicEdgeConv(mlp(16, 6), 3), of_points, during=knn),
    Case('EGConv', 'symnorm', lambda: conv.EGConv(8, 8)),
    Case('EGConv', 'sum, max, std, symnorm', lambda: _eg(['sum', 'max', 'std', 'symnorm'])),
    Case('EGConv', 'mean, min, var', lambda: _eg(['mean', 'min', 'var'], bias=False)),
    Case('EGConv', 'no self loops', lambda: _eg(['sum'], add_self_loops=False)),
    Case('EdgeConv', 'aggr=max', lambda: conv.EdgeConv(mlp(16, 6))),
    Case('EdgeConv', 'aggr=max, ties', lambda: conv.EdgeConv(_ties())),
    Case('EdgeConv', 'aggr=add', lambda: conv.EdgeConv(mlp(16, 6), 'add')),
    Case('FAConv', 'normalized', lambda: conv.FAConv(8), x_and_x_0()),
    Case('FAConv', 'weights', lambda: conv.FAConv(8, normalize=False), x_and_x_0('edge_weight')),
    Case('FAConv', 'no self loops', lambda: conv.FAConv(8, add_self_loops=False), x_and_x_0()),
    Case('FAConv', 'attention weights', lambda: conv.FAConv(8), fa_with_attention),
    Case('FastRGCNConv', 'mean', lambda: conv.FastRGCNConv(8, 6, 3), TYPE),
    Case('FastRGCNConv', 'sum, bases', lambda: conv.FastRGCNConv(8, 6, 3, 2, aggr='add'), TYPE),
    Case('FastRGCNConv', 'blocks', lambda: conv.FastRGCNConv(8, 6, 3, num_blocks=2), TYPE),
    Case('FeaStConv', '2 heads', lambda: conv.FeaStConv(8, 6, 2)),
    Case('FeaStConv', 'no self loops', lambda: conv.FeaStConv(8, 6, 2, False, bias=False)),
    Case('FiLMConv', 'one relation', lambda: conv.FiLMConv(8, 6)),
    Case('FiLMConv', '3 relations', lambda: conv.FiLMConv(8, 6, 3), TYPE),
    Case('FiLMConv', 'own net', lambda: conv.FiLMConv(8, 6, 3, mlp(8, 12), aggr='max'), TYPE),
    Case('FusedGATConv', '', lambda: _fused()),
]


def _ties() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 6), torch.nn.ReLU())


def _eg(aggregators: list[str], **kwargs: Any) -> torch.nn.Module:
    return conv.EGConv(8, 8, aggregators, num_heads=4, **kwargs)


def _fused() -> torch.nn.Module:
    return built_or_bare(conv.FusedGATConv, 8, 6, add_self_loops=False)
