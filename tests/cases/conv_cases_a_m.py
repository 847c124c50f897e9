"""Configurations of PyG's convs on a graph of one node type: A to M."""

from __future__ import annotations

from typing import Any

import torch
from conv_calls import (
    ATTR,
    TYPE,
    WEIGHT,
    fixed_weight,
    knn,
    mlp,
    of_points,
    stacked,
    twice,
    with_attention,
    x_and_x_0,
)
from conv_case import Inputs, bare, case, in_eval, of, takes
from conv_graphs import NUM_NODE_TYPES
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
from torch_geometric.nn import conv

_gat = of('GATConv', 8, 5, 3)
_gatv2 = of('GATv2Conv', 8, 5, 3)
_gcn = of('GCNConv', 8, 6)
_gen = of('GENConv', 8, 6, edge_dim=4, call=ATTR)
_general = of('GeneralConv', 8, 6, 4, call=ATTR)
_heat = of(
    'HEATConv',
    *(8, 6, NUM_NODE_TYPES, 3, 3, 4, 5),
    heads=2,
    call=takes('node_type', 'edge_type', 'edge_attr'),
)
_eg = of('EGConv', 8, 8, num_heads=4)


def _with_lambda_max(module: torch.nn.Module, d: Inputs) -> Any:
    return module(d.x, d.edge_index, lambda_max=torch.tensor(7.0, device=d.x.device))


CASES = [
    case('AGNNConv', 'learnable beta'),
    case('AGNNConv', 'fixed beta, no self loops', False, False),
    case('APPNP', 'K=3', 3, 0.1),
    case('APPNP', 'fixed weights', 2, 0.1, call=fixed_weight),
    case('APPNP', 'learnable weights', 2, 0.1, call=WEIGHT),
    case('APPNP', 'no self loops', 2, 0.1, add_self_loops=False),
    case('APPNP', 'normalize=False', 2, 0.1, normalize=False, call=WEIGHT),
    case('ARMAConv', 'one stack', 8, 6),
    case('ARMAConv', '2 stacks of 2, weights', 8, 6, 2, 2, call=WEIGHT),
    case('ARMAConv', 'shared weights', 8, 6, 2, 3, True, bias=False),
    case('AntiSymmetricConv', 'GCN', 8),
    case('AntiSymmetricConv', 'GAT, 2 steps', 8, conv.GATConv(8, 8), 2),
    case('CGConv', 'no edge features', 8),
    case('CGConv', 'edge features', 8, 4, call=ATTR),
    case('CGConv', 'aggr=max, batch norm', 8, 4, 'max', True, call=ATTR),
    case('ChebConv', 'K=1', 8, 6, 1),
    case('ChebConv', 'K=3, sym, weights', 8, 6, 3, call=WEIGHT),
    case('ChebConv', 'rw', 8, 6, 3, 'rw'),
    case('ChebConv', 'no normalisation, lambda_max given', 8, 6, 3, None, call=_with_lambda_max),
    case('ChebConv', 'no normalisation', 8, 6, 3, None, call=fixed_weight),
    case('ClusterGCNConv', 'self loops', 8, 6, 0.3),
    bare('CuGraphGATConv', 8, 6),
    bare('CuGraphRGCNConv', 8, 6, 3),
    bare('CuGraphSAGEConv', 8, 6),
    case('DNAConv', '2 heads', 8, heads=2, call=stacked()),
    case('DNAConv', 'groups', 8, heads=2, groups=4, bias=False, call=stacked()),
    case('DNAConv', 'normalize=False', 8, normalize=False, call=stacked('edge_weight')),
    case('DirGNNConv', 'GCN', conv.GCNConv(8, 6)),
    case('DirGNNConv', 'SAGE, alpha=0.2', conv.SAGEConv(8, 6), 0.2),
    case('DirGNNConv', 'GAT', conv.GATConv(8, 6), root_weight=False),
    case('DynamicEdgeConv', '', mlp(16, 6), 3, call=of_points, during=knn),
    case('EGConv', 'symnorm', 8, 8),
    _eg('sum, max, std, symnorm', ['sum', 'max', 'std', 'symnorm']),
    _eg('mean, min, var', ['mean', 'min', 'var'], bias=False),
    _eg('no self loops', ['sum'], add_self_loops=False),
    case('EdgeConv', 'aggr=max', mlp(16, 6)),
    case('EdgeConv', 'aggr=max, ties', Sequential(Linear(16, 6), ReLU())),
    case('EdgeConv', 'aggr=add', mlp(16, 6), 'add'),
    case('FAConv', 'normalized', 8, call=x_and_x_0()),
    case('FAConv', 'weights', 8, normalize=False, call=x_and_x_0('edge_weight')),
    case('FAConv', 'no self loops', 8, add_self_loops=False, call=x_and_x_0()),
    case('FAConv', 'attention weights', 8, call=with_attention(x_0=True)),
    case('FastRGCNConv', 'mean', 8, 6, 3, call=TYPE),
    case('FastRGCNConv', 'sum, bases', 8, 6, 3, 2, aggr='add', call=TYPE),
    case('FastRGCNConv', 'blocks', 8, 6, 3, num_blocks=2, call=TYPE),
    case('FeaStConv', '2 heads', 8, 6, 2),
    case('FeaStConv', 'no self loops', 8, 6, 2, False, bias=False),
    case('FiLMConv', 'one relation', 8, 6),
    case('FiLMConv', '3 relations', 8, 6, 3, call=TYPE),
    case('FiLMConv', 'own net', 8, 6, 3, mlp(8, 12), aggr='max', call=TYPE),
    bare('FusedGATConv', 8, 6, add_self_loops=False),
    case('GATConv', 'one head', 8, 6),
    _gat('3 heads, no self loops', add_self_loops=False),
    _gat('edge features', edge_dim=4, call=ATTR),
    _gat('fill_value=max', edge_dim=4, fill_value='max', call=ATTR),
    _gat('concat=False, residual', concat=False, residual=True),
    _gat('residual, no bias', residual=True, bias=False),
    in_eval(_gat('dropout, eval', dropout=0.5)),
    _gat('attention weights', edge_dim=4, call=with_attention('edge_attr')),
    _gat('aggr=max', aggr='max'),
    _gatv2('3 heads'),
    _gatv2('edge features', edge_dim=4, call=ATTR),
    _gatv2('shared weights, residual', share_weights=True, residual=True),
    _gatv2('concat=False, no loops', concat=False, add_self_loops=False),
    _gatv2('attention weights', edge_dim=4, call=with_attention('edge_attr')),
    case('GCN2Conv', 'theta', 8, 0.1, 0.5, 1, call=x_and_x_0('edge_weight')),
    case('GCN2Conv', 'two weights', 8, 0.1, shared_weights=False, call=x_and_x_0()),
    case('GCN2Conv', 'normalize=False', 8, 0.1, normalize=False, call=x_and_x_0('edge_weight')),
    _gcn('default'),
    _gcn('fixed weights', call=fixed_weight),
    _gcn('learnable weights', call=WEIGHT),
    _gcn('improved', improved=True, call=WEIGHT),
    _gcn('no self loops', add_self_loops=False, bias=False, call=WEIGHT),
    _gcn('normalize=False', normalize=False, call=WEIGHT),
    _gcn('cached', cached=True, call=twice),
    _gcn('aggr=max', aggr='max'),
    _gcn('flow=target_to_source', flow='target_to_source', call=WEIGHT),
    case('GENConv', 'softmax', 8, 6),
    _gen('softmax, learnable t', t=0.7, learn_t=True),
    _gen('softmax_sg', aggr='softmax_sg', t=0.7),
    _gen('power, learnable p', aggr='power', p=1.3, learn_p=True),
    _gen('add, layer norm', aggr='add', norm='layer'),
    _gen('add, batch norm', aggr='add'),
    _gen('max, msg_norm', aggr='max', msg_norm=True, norm=None),
    _gen('softmax and max', aggr=['softmax', 'max']),
    case('GINConv', 'eps', mlp(8, 6), 0.3),
    case('GINConv', 'learnable eps', mlp(8, 6), train_eps=True),
    case('GINConv', 'batch norm', Sequential(Linear(8, 7), BatchNorm1d(7), ReLU(), Linear(7, 6))),
    case('GINEConv', 'edge features', mlp(8, 6), edge_dim=4, call=ATTR),
    case('GMMConv', 'default', 8, 6, 4, 2, call=ATTR),
    case('GMMConv', 'separate', 8, 6, 4, 2, True, 'add', bias=False, call=ATTR),
    case('GPSConv', 'GCN', 8, conv.GCNConv(8, 8), 2),
    case('GatedGraphConv', '2 layers', 8, 2),
    case('GatedGraphConv', 'weights', 10, 2, 'mean', call=WEIGHT),
    case('GeneralConv', 'plain', 8, 6),
    _general('edge features', 'max'),
    _general('both ends, l2', directed_msg=False, l2_normalize=True),
    _general('additive attention', attention=True, heads=2),
    _general(
        'dot product', attention=True, heads=2, attention_type='dot_product', skip_linear=True
    ),
    case('GraphConv', 'add', 8, 6),
    case('GraphConv', 'mean, fixed weights', 8, 6, 'mean', call=fixed_weight),
    case('GraphConv', 'learnable weights', 8, 6, bias=False, call=WEIGHT),
    case('GraphConv', 'min, weights', 8, 6, 'min', call=WEIGHT),
    case('GravNetConv', '', 8, 6, 2, 4, 3, call=of_points, during=knn),
    _heat('concat'),
    _heat('mean', concat=False, root_weight=False),
    case('LEConv', 'no weights', 8, 6),
    case('LEConv', 'weights', 8, 6, bias=False, call=WEIGHT),
    case('LGConv', 'normalized'),
    case('LGConv', 'normalize=False', False, call=WEIGHT),
    case('MFConv', 'default', 8, 6),
    case('MFConv', 'max_degree=3', 8, 6, 3, False),
    case('MeshCNNConv', 'default', 8, 6),
    case('MixHopConv', 'default', 8, 6),
    case('MixHopConv', 'powers 1 and 3', 8, 6, [1, 3], False, call=WEIGHT),
]
