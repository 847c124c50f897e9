"""Configurations of PyG's convs on a graph of one node type: N to Z."""

from __future__ import annotations

from conv_calls import (
    ATTR,
    DEGREES,
    TYPE,
    WEIGHT,
    fixed_weight,
    mlp,
    signed,
    spline_kernels,
    twice,
    with_attention,
    with_rows,
)
from conv_case import bare, case, in_eval, of, takes

_ppf = of('PPFConv', call=with_rows('x', 'pos', 'normal'))
_points = of('PointTransformerConv', 8, 6, call=with_rows('x', 'pos'))
_rgat = of('RGATConv', 8, 6, 3, heads=2, call=TYPE)
_spline = of('SplineConv', 8, 6, 2, call=takes(edge_attr='pseudo'), during=spline_kernels)
_super = of('SuperGATConv', 8, 6, 2)
_rgcn = of('RGCNConv', 8, 6, 3, call=TYPE)
_pna = of('PNAConv', 8, 6, deg=DEGREES, edge_dim=4, call=ATTR)
_transformer = of('TransformerConv', 8, 5, 2)
_gated = of('ResGatedGraphConv', 8, 6)

CASES = [
    case('NNConv', 'add', 8, 6, mlp(4, 48), call=ATTR),
    case('NNConv', 'mean', 8, 6, mlp(4, 48), 'mean', False, False, call=ATTR),
    case('PANConv', '', 8, 6, 2),
    case('PDNConv', 'normalized', 8, 6, 4, 5, call=ATTR),
    case('PDNConv', 'plain', 8, 6, 4, 5, False, False, False, call=ATTR),
    _pna('mean, sum', ['mean', 'sum'], ['identity', 'linear']),
    _pna(
        'all scalers',
        ['mean', 'min', 'max', 'std'],
        ['identity', 'amplification', 'attenuation', 'linear', 'inverse_linear'],
    ),
    of('PNAConv', 8, 6, towers=2, divide_input=True, pre_layers=2, post_layers=2)(
        'towers, train_norm', ['max', 'var'], ['identity', 'attenuation'], DEGREES, train_norm=True
    ),
    _ppf('self loops', mlp(12, 7), mlp(7, 6)),
    _ppf('no features', mlp(4, 6), add_self_loops=False, call=with_rows('', 'pos', 'normal')),
    case('PointGNNConv', 'default', mlp(8, 3), mlp(11, 6), mlp(6, 8), call=with_rows('x', 'pos')),
    case('PointNetConv', 'self loops', mlp(11, 7), mlp(7, 6), call=with_rows('x', 'pos')),
    case('PointNetConv', 'no features', mlp(3, 6), add_self_loops=False, call=with_rows('', 'pos')),
    _points('default'),
    _points('own nets', mlp(3, 6), mlp(6, 6), False),
    _rgat('additive'),
    _rgat(
        'multiplicative, edges',
        attention_mode='multiplicative-self-attention',
        dim=2,
        edge_dim=4,
        call=takes('edge_type', 'edge_attr'),
    ),
    _rgat('within-relation', attention_mechanism='within-relation'),
    _rgat('bases', num_bases=2, concat=False),
    _rgat('blocks', num_blocks=2),
    *(_rgat(f'mod={mod}', mod=mod) for mod in ('additive', 'scaled', 'f-additive', 'f-scaled')),
    _rgat('attention weights', call=with_attention('edge_type')),
    _rgcn('mean'),
    _rgcn('bases', 2),
    _rgcn('blocks', num_blocks=2),
    _rgcn('max, no root', aggr='max', root_weight=False, bias=False),
    case('RGCNConv', 'node ids', 60, 6, 3, call=lambda m, d: m(d.node, d.edge_index, d.edge_type)),
    _gated('default'),
    _gated('edge features', edge_dim=4, root_weight=False, bias=False, call=ATTR),
    case('SGConv', 'K=2', 8, 6, 2),
    case('SGConv', 'weights', 8, 6, 1, add_self_loops=False, call=WEIGHT),
    case('SGConv', 'cached', 8, 6, 2, cached=True, call=twice),
    case('SSGConv', 'K=2', 8, 6, 0.1, 2),
    case('SSGConv', 'weights', 8, 6, 0.1, 2, add_self_loops=False, call=WEIGHT),
    case('SignedConv', 'first', 8, 6, True, call=signed),
    case('SignedConv', 'second', 8, 6, False, bias=False, call=signed),
    case('SimpleConv', 'sum'),
    case('SimpleConv', 'mean, cat, weights', 'mean', 'cat', call=fixed_weight),
    case('SimpleConv', 'max, self_loop', 'max', 'self_loop'),
    case('SimpleConv', 'sum, root sum', 'sum', 'sum', call=WEIGHT),
    _spline('mean', 3),
    _spline('closed, add', [3, 4], False, aggr='add', root_weight=False),
    in_eval(_super('MX, eval')),
    _super('MX'),
    in_eval(_super('SD, mean, eval', False, add_self_loops=False, attention_type='SD')),
    case('TAGConv', 'K=3', 8, 6),
    case('TAGConv', 'weights', 8, 6, 2, False, call=WEIGHT),
    case('TAGConv', 'normalize=False', 8, 6, 2, normalize=False, call=fixed_weight),
    _transformer('2 heads'),
    _transformer('edge features', edge_dim=4, call=ATTR),
    _transformer('beta', beta=True),
    _transformer('concat=False', False, bias=False, root_weight=False),
    _transformer('attention weights', edge_dim=4, call=with_attention('edge_attr')),
    case('WLConv', '', call=lambda m, d: m(d.y, d.edge_index)),
    case('WLConvContinuous', 'no weights'),
    case('WLConvContinuous', 'weights', call=WEIGHT),
    bare('XConv', 8, 6, 3, 4, 4),
]
