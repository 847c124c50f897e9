"""PyG's functions that remove and add self loops, on the ids of a rank.

By the rules of rows they would need the ids of all nodes on every rank, and ask other ranks at
every forward of a conv with attention. On the ids of a rank they need neither: both ends of a self
loop are an own node. Results are kept with the edges, and so are the plans of the results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops

from pyg_sar.nn.intercept import AnyFn, Forms
from pyg_sar.rows.adjacency import Adjacency, by_whole
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.edges import edge_index as make_edge_index
from pyg_sar.rows.from_data import conv_arguments
from pyg_sar.rows.rows import tag
from pyg_sar.shard.edges import kept_on


def removed(edge_index: Any, edge_attr: Any = None) -> tuple[Any, Any]:
    """``remove_self_loops``."""
    if isinstance(edge_index, Adjacency):
        without: tuple[Any, Any] = by_whole(remove_self_loops, edge_index, edge_attr)
        return without
    if not _is_of_one_set(edge_index):
        return remove_self_loops(edge_index, edge_attr)
    edges, is_kept = kept_on(
        edge_index.handle, 'removed', lambda: _without_loops(edge_index), edge_index._space
    )
    return edges, None if edge_attr is None else edge_attr[is_kept]


def _added(
    edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None
) -> tuple[Any, Any]:
    """``add_self_loops``."""
    if isinstance(edge_index, Adjacency):
        with_loops: tuple[Any, Any] = by_whole(
            add_self_loops, edge_index, edge_attr, fill_value, num_nodes
        )
        return with_loops
    count = min(num_nodes) if isinstance(num_nodes, (tuple, list)) else num_nodes
    if not _is_known_here(edge_index, edge_attr, fill_value, count):
        return add_self_loops(edge_index, edge_attr, fill_value, num_nodes)
    added = kept_on(edge_index.handle, 'added', lambda: _with_loops(edge_index), edge_index._space)
    return added, _attributes(add_self_loops, added, edge_index, edge_attr, fill_value)


def all_added(
    edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None
) -> tuple[Any, Any]:
    """``add_remaining_self_loops``."""
    if not _is_known_here(edge_index, edge_attr, fill_value, num_nodes):
        return add_remaining_self_loops(edge_index, edge_attr, fill_value, num_nodes)
    added = _added(removed(edge_index)[0], num_nodes=num_nodes)[0]
    return added, _attributes(add_remaining_self_loops, added, edge_index, edge_attr, fill_value)


def _is_known_here(edge_index: Any, edge_attr: Any, fill_value: Any, num_nodes: Any) -> bool:
    """Whether loops at all nodes, and their attributes, follow from what this rank has."""
    if not _is_of_one_set(edge_index) or num_nodes != edge_index.ends.dst.total:
        return False
    # A word is a mean or the like of the edges into a node, whose sources may be the own ones.
    return edge_attr is None or not (edge_index.handle.is_flipped and isinstance(fill_value, str))


def _is_of_one_set(edge_index: Any) -> bool:
    """Whether these are edges of a cut graph between nodes of one set."""
    if not isinstance(edge_index, EdgeIndex):
        return False
    src, dst = edge_index.ends.src, edge_index.ends.dst
    if src is not dst and not (src.has_ids() and dst.has_ids()):
        raise ValueError(
            'self loops cannot be told from other edges between these two sets of nodes: write '
            'add_self_loops=False, and add them before the graph is cut'
        )
    return src is dst


def _attributes(
    function: AnyFn, added: EdgeIndex, edges: EdgeIndex, edge_attr: Any, fill_value: Any
) -> Any:
    """The attributes of `added`, the edges with loops, by PyG's function on the ids of the rank."""
    if edge_attr is None:
        return None
    own = conv_arguments(edge_attr, [edges], function.__name__)
    return tag(function(edges.handle.ids, own, fill_value, edges.ends.dst.own)[1], 0, added._space)


def _without_loops(edges: EdgeIndex) -> tuple[Any, Tensor]:
    src, dst = edges.handle.ids
    is_kept: Tensor = tag(src != dst, 0, edges._space)
    return edges[:, is_kept], is_kept


def _with_loops(edges: EdgeIndex) -> EdgeIndex:
    nodes, handle = edges.ends.dst, edges.handle
    loops = torch.arange(nodes.own, device=handle.ids.device).repeat(2, 1)
    joined = handle.with_ids(torch.cat([handle.ids, loops], dim=1))
    return make_edge_index(joined, edges._space.joined((nodes,)), edges.ends)


LOOPS: Forms = {
    remove_self_loops: removed,
    add_self_loops: _added,
    add_remaining_self_loops: all_added,
}
"""PyG's functions and what replaces them in a conv's forward."""
