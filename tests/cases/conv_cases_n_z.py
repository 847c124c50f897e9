"""Configurations of PyG's convs on a graph of one node type: N to Z."""

from __future__ import annotations

from typing import Any

import torch
from conv_calls import (
    ATTR,
    DEGREES,
    TYPE,
    WEIGHT,
    fixed_weight,
    mlp,
    points,
    signed,
    spline_kernels,
    twice,
    two_signed,
    with_attention,
)
from conv_case import Case, built_or_bare, takes
from torch_geometric.nn import conv

CASES = [
    Case('NNConv', 'add', lambda: conv.NNConv(8, 6, mlp(4, 48)), ATTR),
    Case('NNConv', 'mean', lambda: conv.NNConv(8, 6, mlp(4, 48), 'mean', False, False), ATTR),
    Case('PANConv', '', lambda: conv.PANConv(8, 6, 2)),
    Case('PDNConv', 'normalized', lambda: conv.PDNConv(8, 6, 4, 5), ATTR),
    Case('PDNConv', 'plain', lambda: conv.PDNConv(8, 6, 4, 5, False, False, False), ATTR),
    Case('PNAConv', 'mean, sum', lambda: _pna(['mean', 'sum'], ['identity', 'linear']), ATTR),
    Case(
        'PNAConv',
        'all scalers',
        lambda: _pna(
            ['mean', 'min', 'max', 'std'],
            ['identity', 'amplification', 'attenuation', 'linear', 'inverse_linear'],
        ),
        ATTR,
    ),
    Case(
        'PNAConv',
        'towers, train_norm',
        lambda: conv.PNAConv(
            8,
            6,
            ['max', 'var'],
            ['identity', 'attenuation'],
            DEGREES,
            towers=2,
            divide_input=True,
            pre_layers=2,
            post_layers=2,
            train_norm=True,
        ),
    ),
    Case(
        'PPFConv',
        'self loops',
        lambda: conv.PPFConv(mlp(12, 7), mlp(7, 6)),
        lambda m, d: m(d.x, d.pos, d.normal, d.edge_index),
    ),
    Case(
        'PPFConv',
        'no features',
        lambda: conv.PPFConv(mlp(4, 6), add_self_loops=False),
        lambda m, d: m(None, d.pos, d.normal, d.edge_index),
    ),
    Case(
        'PointGNNConv',
        'default',
        lambda: conv.PointGNNConv(mlp(8, 3), mlp(11, 6), mlp(6, 8)),
        points,
    ),
    Case('PointNetConv', 'self loops', lambda: conv.PointNetConv(mlp(11, 7), mlp(7, 6)), points),
    Case(
        'PointNetConv',
        'no features',
        lambda: conv.PointNetConv(mlp(3, 6), add_self_loops=False),
        lambda m, d: m(None, d.pos, d.edge_index),
    ),
    Case('PointTransformerConv', 'default', lambda: conv.PointTransformerConv(8, 6), points),
    Case(
        'PointTransformerConv',
        'own nets',
        lambda: conv.PointTransformerConv(8, 6, mlp(3, 6), mlp(6, 6), False),
        points,
    ),
    Case('RGATConv', 'additive', lambda: _rgat(), TYPE),
    Case(
        'RGATConv',
        'multiplicative, edges',
        lambda: _rgat(attention_mode='multiplicative-self-attention', dim=2, edge_dim=4),
        takes('edge_type', 'edge_attr'),
    ),
    Case('RGATConv', 'within-relation', lambda: _rgat(attention_mechanism='within-relation'), TYPE),
    Case('RGATConv', 'bases', lambda: _rgat(num_bases=2, concat=False), TYPE),
    Case('RGATConv', 'blocks', lambda: _rgat(num_blocks=2), TYPE),
    Case('RGATConv', 'mod=additive', lambda: _rgat(mod='additive'), TYPE),
    Case('RGATConv', 'mod=scaled', lambda: _rgat(mod='scaled'), TYPE),
    Case('RGATConv', 'mod=f-additive', lambda: _rgat(mod='f-additive'), TYPE),
    Case('RGATConv', 'mod=f-scaled', lambda: _rgat(mod='f-scaled'), TYPE),
    Case('RGATConv', 'attention weights', lambda: _rgat(), with_attention('edge_type')),
    Case('RGCNConv', 'mean', lambda: conv.RGCNConv(8, 6, 3), TYPE),
    Case('RGCNConv', 'bases', lambda: conv.RGCNConv(8, 6, 3, 2), TYPE),
    Case('RGCNConv', 'blocks', lambda: conv.RGCNConv(8, 6, 3, num_blocks=2), TYPE),
    Case(
        'RGCNConv', 'max, no root', lambda: _rgcn(aggr='max', root_weight=False, bias=False), TYPE
    ),
    Case(
        'RGCNConv',
        'node ids',
        lambda: conv.RGCNConv(60, 6, 3),
        lambda m, d: m(d.node, d.edge_index, d.edge_type),
    ),
    Case('ResGatedGraphConv', 'default', lambda: conv.ResGatedGraphConv(8, 6)),
    Case(
        'ResGatedGraphConv',
        'edge features',
        lambda: conv.ResGatedGraphConv(8, 6, edge_dim=4, root_weight=False, bias=False),
        ATTR,
    ),
    Case('SGConv', 'K=2', lambda: conv.SGConv(8, 6, 2)),
    Case('SGConv', 'weights', lambda: conv.SGConv(8, 6, 1, add_self_loops=False), WEIGHT),
    Case('SGConv', 'cached', lambda: conv.SGConv(8, 6, 2, cached=True), twice),
    Case('SSGConv', 'K=2', lambda: conv.SSGConv(8, 6, 0.1, 2)),
    Case('SSGConv', 'weights', lambda: conv.SSGConv(8, 6, 0.1, 2, add_self_loops=False), WEIGHT),
    Case('SignedConv', 'first', lambda: conv.SignedConv(8, 6, True), signed),
    Case('SignedConv', 'second', lambda: conv.SignedConv(8, 6, False, bias=False), two_signed),
    Case('SimpleConv', 'sum', lambda: conv.SimpleConv()),
    Case('SimpleConv', 'mean, cat, weights', lambda: conv.SimpleConv('mean', 'cat'), fixed_weight),
    Case('SimpleConv', 'max, self_loop', lambda: conv.SimpleConv('max', 'self_loop')),
    Case('SimpleConv', 'sum, root sum', lambda: conv.SimpleConv('sum', 'sum'), WEIGHT),
    Case(
        'SplineConv',
        'mean',
        lambda: conv.SplineConv(8, 6, 2, 3),
        takes(edge_attr='pseudo'),
        during=spline_kernels,
    ),
    Case(
        'SplineConv',
        'closed, add',
        lambda: conv.SplineConv(8, 6, 2, [3, 4], False, aggr='add', root_weight=False),
        takes(edge_attr='pseudo'),
        during=spline_kernels,
    ),
    Case('SuperGATConv', 'MX, eval', lambda: conv.SuperGATConv(8, 6, 2).eval()),
    Case('SuperGATConv', 'MX', lambda: conv.SuperGATConv(8, 6, 2)),
    Case(
        'SuperGATConv',
        'SD, mean, eval',
        lambda: conv.SuperGATConv(8, 6, 2, False, add_self_loops=False, attention_type='SD').eval(),
    ),
    Case('TAGConv', 'K=3', lambda: conv.TAGConv(8, 6)),
    Case('TAGConv', 'weights', lambda: conv.TAGConv(8, 6, 2, False), WEIGHT),
    Case(
        'TAGConv', 'normalize=False', lambda: conv.TAGConv(8, 6, 2, normalize=False), fixed_weight
    ),
    Case('TransformerConv', '2 heads', lambda: conv.TransformerConv(8, 5, 2)),
    Case(
        'TransformerConv', 'edge features', lambda: conv.TransformerConv(8, 5, 2, edge_dim=4), ATTR
    ),
    Case('TransformerConv', 'beta', lambda: conv.TransformerConv(8, 5, 2, beta=True)),
    Case(
        'TransformerConv',
        'concat=False',
        lambda: conv.TransformerConv(8, 5, 2, False, bias=False, root_weight=False),
    ),
    Case(
        'TransformerConv',
        'attention weights',
        lambda: conv.TransformerConv(8, 5, 2, edge_dim=4),
        with_attention('edge_attr'),
    ),
    Case('WLConv', '', lambda: conv.WLConv(), lambda m, d: m(d.y, d.edge_index)),
    Case('WLConvContinuous', 'no weights', lambda: conv.WLConvContinuous()),
    Case('WLConvContinuous', 'weights', lambda: conv.WLConvContinuous(), WEIGHT),
    Case('XConv', '', lambda: built_or_bare(conv.XConv, 8, 6, 3, 4, 4)),
]


def _pna(aggregators: list[str], scalers: list[str]) -> torch.nn.Module:
    return conv.PNAConv(8, 6, aggregators, scalers, DEGREES, edge_dim=4)


def _rgat(**kwargs: Any) -> torch.nn.Module:
    return conv.RGATConv(8, 6, 3, heads=2, **kwargs)


def _rgcn(**kwargs: Any) -> torch.nn.Module:
    return conv.RGCNConv(8, 6, 3, **kwargs)
