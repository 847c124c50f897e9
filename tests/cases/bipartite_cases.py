"""Convs between two sets of nodes, on several types of nodes, and on hypergraphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from conv_calls import mlp, spline_kernels
from conv_case import Call, Case, Inputs, case, of
from conv_graphs import hetero
from torch_geometric.nn import conv

_TO = ('src', 'to', 'dst')
_BOTH = (8, 5)


def _call(ends: Callable[[Inputs], list[Any]]) -> Callable[..., Call]:
    """Makes calls with pairs for sources and destinations, and edge attributes by their names."""

    def of_names(*names: str) -> Call:
        def call(module: torch.nn.Module, d: Inputs) -> Any:
            edges = d.of(*_TO)
            kwargs = {name: getattr(edges, name) for name in names}
            return module(*ends(d), edges.edge_index, **kwargs)

        return call

    return of_names


def _pair(d: Inputs, name: str) -> Any:
    return getattr(d.of('src'), name), getattr(d.of('dst'), name)


def _dst_of_8(d: Inputs) -> Any:
    return torch.cat([d.of('dst').x, d.of('dst').pos], dim=-1)


def _rows(*names: str) -> Call:
    """A call with pairs of features, of positions and of whatever else the conv takes."""
    return _call(lambda d: [_pair(d, name) for name in names])()


pair = _call(lambda d: [_pair(d, 'x')])
_same_width = _call(lambda d: [(d.of('src').x, _dst_of_8(d))])


def _sources_only(module: torch.nn.Module, d: Inputs) -> Any:
    size = d.data['src'].num_nodes, d.data['dst'].num_nodes
    return module((d.of('src').x, None), d.of(*_TO).edge_index, size=size)


def _signed(module: torch.nn.Module, d: Inputs) -> Any:
    edges = d.of(*_TO)
    is_positive, edge_index = edges.edge_type == 0, edges.edge_index
    x = d.of('src').x, _dst_of_8(d)
    return module(x, edge_index[:, is_positive], edge_index[:, ~is_positive])


def _of_splines(module: torch.nn.Module, d: Inputs) -> Any:
    edges = d.of(*_TO)
    return module(_pair(d, 'x'), edges.edge_index, edges.edge_attr.sigmoid())


def _between(name: str, /, *args: Any, config: str = '(x_src, x_dst)', **options: Any) -> Case:
    return case(name, config, *args, graph='bipartite', **options)


def _of_sources(name: str, /, *args: Any, **options: Any) -> Case:
    return _between(name, *args, config='(x_src, None)', call=_sources_only, **options)


_gat = partial(_between, 'GATConv', _BOTH, 5, 2, add_self_loops=False)

_BIPARTITE = [
    _between('CGConv', _BOTH, 4, call=pair('edge_attr')),
    _between('EdgeConv', mlp(16, 6), call=_same_width()),
    _between('FastRGCNConv', _BOTH, 6, 3, call=pair('edge_type')),
    _between('FeaStConv', 8, 6, 2, False, call=_same_width()),
    _between('FiLMConv', _BOTH, 6, 3, call=pair('edge_type')),
    _gat(call=pair()),
    _gat(edge_dim=4, residual=True, call=pair('edge_attr'), config='(x_src, x_dst), edge features'),
    _of_sources('GATConv', _BOTH, 5, 2, add_self_loops=False),
    _between('GATv2Conv', _BOTH, 5, 2, add_self_loops=False, edge_dim=4, call=pair('edge_attr')),
    _between('GENConv', _BOTH, 6, 'add', edge_dim=4, call=pair('edge_attr')),
    _between('GINConv', mlp(8, 6), call=_same_width()),
    _of_sources('GINConv', mlp(8, 6)),
    _between('GINEConv', mlp(8, 6), edge_dim=4, call=_same_width('edge_attr')),
    _between('GMMConv', _BOTH, 6, 4, 2, call=pair('edge_attr')),
    _between('GeneralConv', (8, 8), 6, 4, call=_same_width('edge_attr')),
    _between('GraphConv', _BOTH, 6, call=pair('edge_weight')),
    _of_sources('GraphConv', _BOTH, 6),
    _between('LEConv', _BOTH, 6, call=pair('edge_weight')),
    _between('MFConv', _BOTH, 6, call=pair()),
    _between('NNConv', _BOTH, 6, mlp(4, 48), call=pair('edge_attr')),
    _between('PPFConv', mlp(12, 7), mlp(7, 6), False, call=_rows('x', 'pos', 'normal')),
    _between('PointNetConv', mlp(11, 7), mlp(7, 6), False, call=_rows('x', 'pos')),
    _between('PointTransformerConv', _BOTH, 6, add_self_loops=False, call=_rows('x', 'pos')),
    _between('RGCNConv', _BOTH, 6, 3, call=pair('edge_type')),
    _between('ResGatedGraphConv', _BOTH, 6, edge_dim=4, call=pair('edge_attr')),
    _between('SAGEConv', _BOTH, 6, call=pair()),
    _of_sources('SAGEConv', _BOTH, 6),
    _between('SAGEConv', _BOTH, 6, 'max', call=pair(), config='(x_src, x_dst), max'),
    _between('SignedConv', 8, 6, True, call=_signed),
    _between('SimpleConv', 'mean', 'cat', call=pair('edge_weight')),
    _between('SplineConv', _BOTH, 6, 4, 2, call=_of_splines, during=spline_kernels),
    _between('TransformerConv', _BOTH, 5, 2, edge_dim=4, call=pair('edge_attr')),
    _between('WLConvContinuous', call=_same_width('edge_weight')),
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


def _hyper(*names: str) -> Call:
    def call(module: torch.nn.Module, d: Inputs) -> Any:
        edges = d.of('hyperedge')
        given = {'hyperedge_attr': 'x', 'hyperedge_weight': 'weight'}
        kwargs = {name: getattr(edges, given[name]) for name in names}
        incidence = d.of('node', 'in', 'hyperedge').edge_index
        num_edges = d.data['hyperedge'].num_nodes
        return module(d.of('node').x, incidence, num_edges=num_edges, **kwargs)

    return call


_META = hetero().metadata()
_SAGE = {edge_type: conv.SAGEConv((8, 8), 6) for edge_type in _META[1]}
_GAT = {t: conv.GATConv((8, 8), 6, add_self_loops=False, edge_dim=4) for t in _META[1]}
_hypergraph = of('HypergraphConv', 8, 6, graph='hypergraph')

_HETERO = [
    case('HANConv', '2 heads', 8, 6, _META, 2, call=dicts, graph='hetero'),
    case('HGTConv', '2 heads', 8, 6, _META, 2, call=dicts, graph='hetero'),
    case('HGTConv', 'skip', 8, 8, _META, call=dicts, graph='hetero'),
    case('HeteroConv', 'SAGE, sum', _SAGE, call=dicts, graph='hetero'),
    case('HeteroConv', 'SAGE, max', _SAGE, 'max', call=dicts, graph='hetero'),
    case('HeteroConv', 'GAT', _GAT, call=_with_edge_attr, graph='hetero'),
    _hypergraph('plain', call=_hyper()),
    _hypergraph('weights', bias=False, call=_hyper('hyperedge_weight')),
    _hypergraph('attention over nodes', True, heads=2, call=_hyper('hyperedge_attr')),
    _hypergraph(
        *('attention over hyperedges', True, 'edge'),
        heads=2,
        concat=False,
        call=_hyper('hyperedge_attr', 'hyperedge_weight'),
    ),
]

CASES = [*_BIPARTITE, *_HETERO]
