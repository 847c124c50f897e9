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
    'MeshCNNConv',
    'PANConv',
    'WLConv',
    'XConv',
}
"""Classes that are refused for good, at construction or at the first forward by a rule of rows:
graphs of nearest points, closed CUDA kernels, products of adjacency matrices, colours by a
dictionary, attention over all nodes, edges by place."""

NOT_YET_GRAPHS: set[str] = set()
"""Graphs whose convs are refused."""

NOT_YET = {
    'MessagePassing: reads edge_index in message',
}
"""Cases that are refused at construction today. One that becomes exact has to leave the list."""

FAILS_TODAY: dict[str, str] = {}
"""Cases that fail in forward or give a wrong result today. One that is exact has to leave."""

READ_ROWS_IN_FORWARD = {
    'HypergraphConv: attention over hyperedges',
    'HypergraphConv: attention over nodes',
    'MessagePassing: reads x at sources in forward',
    'MessagePassing: reduces over sources in forward',
    'SuperGATConv: MX',
}
"""Cases whose forward itself takes rows at the sources of all edges, so the halo comes at once."""
