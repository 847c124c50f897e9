"""Time stamps as torch_geometric.distributed's temporal samplers expect them.

They read the ``time`` of all nodes in every part, and the times of a part's edges by position:
edges are sorted by (destination, time), and everything in ``edge_feats.pt`` lies in that order. Our
own loader reads both from our own files, as it does every other attribute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.partitioner.graph.typed import NodeSet, Relation


def node_time(nodes: NodeSet) -> Tensor | None:
    """The time of every node, [N]."""
    return _time(nodes.attrs, 'time')


def edge_time(relation: Relation) -> Tensor | None:
    """The time of every edge, [E], under either of the names that PyG takes."""
    return _time(relation.attrs, 'edge_time', 'time')


def _time(attrs: dict[str, Tensor], *names: str) -> Tensor | None:
    """The first of these attributes that can be sorted by; one of another kind is no time."""
    for name in names:
        values = attrs.get(name)
        if values is None or values.dim() != 1 or values.is_complex():
            continue
        if not values.is_floating_point() or values.element_size() > 1:  # float8 has no order
            return values
    return None


def sort_by_time(graph: dict[str, Any], relation: Relation, src_nodes: NodeSet) -> dict[str, Any]:
    """What ``graph.pt`` holds of a relation, sorted by (destination, time).

    The time is that of the edge, or else of its source, as in PyG; without either the order stays.

    Args:
        graph: Global ids ``row``, ``col`` and ``edge_id`` of the edges of a part.
        relation: The relation they belong to.
        src_nodes: The nodes that its edges start from.
    """
    of_edges, of_nodes = edge_time(relation), node_time(src_nodes)
    if of_edges is not None:
        times = of_edges[graph['edge_id']]
    elif of_nodes is not None:
        times = of_nodes[graph['row']]
    else:
        return graph
    order = torch.argsort(times, stable=True)
    order = order[torch.argsort(graph['col'][order], stable=True)]
    return {name: graph[name][order] for name in ('edge_id', 'row', 'col')} | {
        'size': graph['size']
    }
