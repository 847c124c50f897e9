"""What is not exact, and is known not to be. Whatever is not listed here has to be exact."""

from __future__ import annotations

REFUSED_BY_DESIGN = {
    'CuGraphGATConv',
    'CuGraphRGCNConv',
    'CuGraphSAGEConv',
    'DynamicEdgeConv',
    'FusedGATConv',
    'GPSConv',
    'GravNetConv',
    'PANConv',
    'WLConv',
    'XConv',
}
"""Classes that are refused at construction, for good: graphs made in forward, closed CUDA kernels,
products of adjacency matrices, colours by a dictionary, attention over all nodes."""

NOT_YET_GRAPHS: set[str] = set()
"""Graphs whose convs are refused."""

NOT_YET = {
    'MeshCNNConv: default',
    'MessagePassing: reads edge_index in message',
}
"""Cases that are refused at construction today. One that becomes exact has to leave the list."""

_OTHERS = 'the result of a node depends on the degrees of others; refused in forward only'

FAILS_TODAY = {
    'EGConv: mean, min, var': 'its self loops are added to halo nodes too',
    'MessagePassing: keeps a number in message': 'only edge values are kept',
    'SimpleConv: aggr=Equilibrium': _OTHERS,
    'SimpleConv: aggr=PatchTransformer': _OTHERS,
}
"""Cases that fail in forward or give a wrong result today. One that is exact has to leave."""
