"""Convs between two sets of nodes, on several types of nodes, and on hypergraphs."""

from __future__ import annotations

from typing import Any

import torch
from conv_calls import mlp, spline_kernels
from conv_case import Call, Case, Inputs
from conv_graphs import hetero
from torch_geometric.nn import conv

_TO = ('src', 'to', 'dst')
_BOTH = (8, 5)


def pair(*names: str) -> Call:
    """A call with (x_src, x_dst), edge_index and edge attributes."""

    def call(module: torch.nn.Module, d: Inputs) -> Any:
        edges = d.of(*_TO)
        kwargs = {name: getattr(edges, name) for name in names}
        return module((d.of('src').x, d.of('dst').x), edges.edge_index, **kwargs)

    return call


def sources_only(*names: str) -> Call:
    """A call with (x_src, None)."""

    def call(module: torch.nn.Module, d: Inputs) -> Any:
        edges = d.of(*_TO)
        kwargs = {name: getattr(edges, name) for name in names}
        size = d.data['src'].num_nodes, d.data['dst'].num_nodes
        return module((d.of('src').x, None), edges.edge_index, size=size, **kwargs)

    return call


def _points(*names: str) -> Call:
    """A call with pairs of features, of positions and of whatever else the conv takes."""

    def call(module: torch.nn.Module, d: Inputs) -> Any:
        src, dst = d.of('src'), d.of('dst')
        both = [(getattr(src, name), getattr(dst, name)) for name in names]
        return module(*both, d.of(*_TO).edge_index)

    return call


def _same_width(*names: str) -> Call:
    """A call with (x_src, x_dst) of one width."""

    def call(module: torch.nn.Module, d: Inputs) -> Any:
        edges = d.of(*_TO)
        x_dst = torch.cat([d.of('dst').x, d.of('dst').pos], dim=-1)
        kwargs = {name: getattr(edges, name) for name in names}
        return module((d.of('src').x, x_dst), edges.edge_index, **kwargs)

    return call


def _signed(module: torch.nn.Module, d: Inputs) -> Any:
    edges = d.of(*_TO)
    is_positive = edges.edge_type == 0
    x_dst = torch.cat([d.of('dst').x, d.of('dst').pos], dim=-1)
    edge_index = edges.edge_index
    return module((d.of('src').x, x_dst), edge_index[:, is_positive], edge_index[:, ~is_positive])


def _between(name: str, make: Any, call: Call, config: str = '(x_src, x_dst)', **kw: Any) -> Case:
    return Case(name, config, make, call, graph='bipartite', **kw)


_BIPARTITE = [
    _between('CGConv', lambda: conv.CGConv(_BOTH, 4), pair('edge_attr')),
    _between('EdgeConv', lambda: conv.EdgeConv(mlp(16, 6)), _same_width()),
    _between('FastRGCNConv', lambda: conv.FastRGCNConv(_BOTH, 6, 3), pair('edge_type')),
    _between('FeaStConv', lambda: conv.FeaStConv(8, 6, 2, False), _same_width()),
    _between('FiLMConv', lambda: conv.FiLMConv(_BOTH, 6, 3), pair('edge_type')),
    _between('GATConv', lambda: conv.GATConv(_BOTH, 5, 2, add_self_loops=False), pair()),
    _between(
        'GATConv',
        lambda: conv.GATConv(_BOTH, 5, 2, add_self_loops=False, edge_dim=4, residual=True),
        pair('edge_attr'),
        '(x_src, x_dst), edge features',
    ),
    _between(
        'GATConv',
        lambda: conv.GATConv(_BOTH, 5, 2, add_self_loops=False),
        sources_only(),
        '(x_src, None)',
    ),
    _between(
        'GATv2Conv',
        lambda: conv.GATv2Conv(_BOTH, 5, 2, add_self_loops=False, edge_dim=4),
        pair('edge_attr'),
    ),
    _between('GENConv', lambda: conv.GENConv(_BOTH, 6, 'add', edge_dim=4), pair('edge_attr')),
    _between('GINConv', lambda: conv.GINConv(mlp(8, 6)), _same_width()),
    _between('GINConv', lambda: conv.GINConv(mlp(8, 6)), sources_only(), '(x_src, None)'),
    _between('GINEConv', lambda: conv.GINEConv(mlp(8, 6), edge_dim=4), _same_width('edge_attr')),
    _between('GMMConv', lambda: conv.GMMConv(_BOTH, 6, 4, 2), pair('edge_attr')),
    _between('GeneralConv', lambda: conv.GeneralConv((8, 8), 6, 4), _same_width('edge_attr')),
    _between('GraphConv', lambda: conv.GraphConv(_BOTH, 6), pair('edge_weight')),
    _between('GraphConv', lambda: conv.GraphConv(_BOTH, 6), sources_only(), '(x_src, None)'),
    _between('LEConv', lambda: conv.LEConv(_BOTH, 6), pair('edge_weight')),
    _between('MFConv', lambda: conv.MFConv(_BOTH, 6), pair()),
    _between('NNConv', lambda: conv.NNConv(_BOTH, 6, mlp(4, 48)), pair('edge_attr')),
    _between(
        'PPFConv',
        lambda: conv.PPFConv(mlp(12, 7), mlp(7, 6), False),
        _points('x', 'pos', 'normal'),
    ),
    _between(
        'PointNetConv',
        lambda: conv.PointNetConv(mlp(11, 7), mlp(7, 6), False),
        _points('x', 'pos'),
    ),
    _between(
        'PointTransformerConv',
        lambda: conv.PointTransformerConv(_BOTH, 6, add_self_loops=False),
        _points('x', 'pos'),
    ),
    _between('RGCNConv', lambda: conv.RGCNConv(_BOTH, 6, 3), pair('edge_type')),
    _between(
        'ResGatedGraphConv',
        lambda: conv.ResGatedGraphConv(_BOTH, 6, edge_dim=4),
        pair('edge_attr'),
    ),
    _between('SAGEConv', lambda: conv.SAGEConv(_BOTH, 6), pair()),
    _between('SAGEConv', lambda: conv.SAGEConv(_BOTH, 6), sources_only(), '(x_src, None)'),
    _between('SAGEConv', lambda: conv.SAGEConv(_BOTH, 6, 'max'), pair(), '(x_src, x_dst), max'),
    _between('SignedConv', lambda: conv.SignedConv(8, 6, True), _signed),
    _between('SimpleConv', lambda: conv.SimpleConv('mean', 'cat'), pair('edge_weight')),
    _between(
        'SplineConv',
        lambda: conv.SplineConv(_BOTH, 6, 4, 2),
        lambda m, d: m(
            (d.of('src').x, d.of('dst').x), d.of(*_TO).edge_index, d.of(*_TO).edge_attr.sigmoid()
        ),
        during=spline_kernels,
    ),
    _between(
        'TransformerConv',
        lambda: conv.TransformerConv(_BOTH, 5, 2, edge_dim=4),
        pair('edge_attr'),
    ),
    _between('WLConvContinuous', lambda: conv.WLConvContinuous(), _same_width('edge_weight')),
]


def x_dict(d: Inputs) -> dict[str, Any]:
    return {node_type: d.of(node_type).x for node_type in d.data.node_types}


def edge_index_dict(d: Inputs) -> dict[Any, Any]:
    return {edge_type: d.data[edge_type].edge_index for edge_type in d.data.edge_types}


def dicts(module: torch.nn.Module, d: Inputs) -> Any:
    return module(x_dict(d), edge_index_dict(d))


def _with_edge_attr(module: torch.nn.Module, d: Inputs) -> Any:
    attributes = {edge_type: d.of(*edge_type).edge_attr for edge_type in d.data.edge_types}
    return module(x_dict(d), edge_index_dict(d), edge_attr_dict=attributes)


def _convs(make: Any) -> dict[Any, torch.nn.Module]:
    return {edge_type: make() for edge_type in hetero().edge_types}


def _hyper(*names: str) -> Call:
    def call(module: torch.nn.Module, d: Inputs) -> Any:
        edges = d.of('hyperedge')
        given = {'hyperedge_attr': 'x', 'hyperedge_weight': 'weight'}
        kwargs = {name: getattr(edges, given[name]) for name in names}
        incidence = d.of('node', 'in', 'hyperedge').edge_index
        num_edges = d.data['hyperedge'].num_nodes
        return module(d.of('node').x, incidence, num_edges=num_edges, **kwargs)

    return call


def _sage() -> torch.nn.Module:
    return conv.SAGEConv((8, 8), 6)


def _gat() -> torch.nn.Module:
    return conv.GATConv((8, 8), 6, add_self_loops=False, edge_dim=4)


_META = hetero().metadata()

_HETERO = [
    Case('HANConv', '2 heads', lambda: conv.HANConv(8, 6, _META, 2), dicts, 'hetero'),
    Case('HGTConv', '2 heads', lambda: conv.HGTConv(8, 6, _META, 2), dicts, 'hetero'),
    Case('HGTConv', 'skip', lambda: conv.HGTConv(8, 8, _META), dicts, 'hetero'),
    Case('HeteroConv', 'SAGE, sum', lambda: conv.HeteroConv(_convs(_sage)), dicts, 'hetero'),
    Case('HeteroConv', 'SAGE, max', lambda: conv.HeteroConv(_convs(_sage), 'max'), dicts, 'hetero'),
    Case('HeteroConv', 'GAT', lambda: conv.HeteroConv(_convs(_gat)), _with_edge_attr, 'hetero'),
    Case('HypergraphConv', 'plain', lambda: conv.HypergraphConv(8, 6), _hyper(), 'hypergraph'),
    Case(
        'HypergraphConv',
        'weights',
        lambda: conv.HypergraphConv(8, 6, bias=False),
        _hyper('hyperedge_weight'),
        'hypergraph',
    ),
    Case(
        'HypergraphConv',
        'attention over nodes',
        lambda: conv.HypergraphConv(8, 6, True, heads=2),
        _hyper('hyperedge_attr'),
        'hypergraph',
    ),
    Case(
        'HypergraphConv',
        'attention over hyperedges',
        lambda: conv.HypergraphConv(8, 6, True, 'edge', heads=2, concat=False),
        _hyper('hyperedge_attr', 'hyperedge_weight'),
        'hypergraph',
    ),
]

CASES = [*_BIPARTITE, *_HETERO]
