"""All cases by name, and which of them are not exact."""

from __future__ import annotations

import aggregator_cases
import bipartite_cases
import homogeneous_cases
import own_cases
from conv_case import Case

ALL: list[Case] = [
    *homogeneous_cases.CASES,
    *aggregator_cases.CASES,
    *bipartite_cases.CASES,
    *own_cases.CASES,
]
"""What the table of docs/convs.md has."""

CASES: dict[str, Case] = {case.name: case for case in ALL}

MORE: dict[str, Case] = {case.name: case for case in own_cases.MORE}
"""Exact as well."""

CHECKS: dict[str, Case] = {case.name: case for case in own_cases.CHECKS}
"""Cases that must not come out exact: what tells that a run can fail."""

ANY = CASES | MORE | CHECKS

REFUSED_BY_DESIGN = {
    *('CuGraphGATConv', 'CuGraphRGCNConv', 'CuGraphSAGEConv', 'FusedGATConv'),
    *('MeshCNNConv', 'PANConv', 'WLConv', 'XConv'),
}
"""Classes that are refused for good, at construction or at the first forward by a rule of rows:
closed CUDA kernels, products of adjacency matrices, colours by a dictionary, edges by place."""

EXACT = [c.name for c in ALL if c.conv not in REFUSED_BY_DESIGN]

OF_CONVS = list({CASES[name].conv: name for name in reversed(EXACT)}.values())
"""The first case of every conv, which benchmarks/convs measures."""

READ_ROWS_IN_FORWARD = {
    'HypergraphConv: attention over hyperedges',
    'HypergraphConv: attention over nodes',
    'MessagePassing: reads x at sources in forward',
    'MessagePassing: reduces over sources in forward',
    'SuperGATConv: MX',
}
"""Cases whose forward itself takes rows at the sources of all edges, so the halo comes at once."""
