"""Self loops that PyG takes from edges or adds to them: made once for the edges of a graph.

PyG's own functions make them, by the rules of rows, and ask the other ranks where the nodes of each
edge are. A conv with attention does so at every forward, with the edges that it had before. So what
they give is kept with the edges, and nothing is asked again. Rows of edges follow each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops
from torch_geometric.utils.loop import compute_loop_attr

from pyg_sar.rows.edges import EdgeIndex

AnyFn = Callable[..., Any]


def loop_forms() -> dict[AnyFn, AnyFn]:
    """PyG's functions and what stands in for them during a conv's forward."""
    return {
        remove_self_loops: _removed,
        add_self_loops: _added,
        add_remaining_self_loops: _all_added,
    }


def _removed(edge_index: Any, edge_attr: Any = None) -> tuple[Any, Any]:
    """``remove_self_loops``."""
    if not isinstance(edge_index, EdgeIndex):
        return remove_self_loops(edge_index, edge_attr)
    made, is_kept = _once(edge_index, ('removed',), lambda: _without_loops(edge_index))
    return made, None if edge_attr is None else edge_attr[is_kept]


def _without_loops(edge_index: EdgeIndex) -> tuple[Any, Tensor]:
    is_kept = edge_index[0] != edge_index[1]
    return edge_index[:, is_kept], is_kept


def _added(
    edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None
) -> tuple[Any, Any]:
    """``add_self_loops``."""
    if not isinstance(edge_index, EdgeIndex) or num_nodes is None:
        return add_self_loops(edge_index, edge_attr, fill_value, num_nodes)
    count = min(num_nodes) if isinstance(num_nodes, (tuple, list)) else int(num_nodes)
    key = 'added', count
    made, _ = _once(edge_index, key, lambda: add_self_loops(edge_index, num_nodes=count))
    if edge_attr is None:
        return made, None
    of_loops = compute_loop_attr(edge_index, edge_attr, count, False, fill_value)
    return made, torch.cat([edge_attr, of_loops], dim=0)


def _all_added(
    edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None
) -> tuple[Any, Any]:
    """``add_remaining_self_loops``; attributes of loops that are there stay, as PyG has it."""
    if not isinstance(edge_index, EdgeIndex) or edge_attr is not None or num_nodes is None:
        return add_remaining_self_loops(edge_index, edge_attr, fill_value, num_nodes)
    key = 'all added', int(num_nodes)
    made: tuple[Any, Any] = _once(
        edge_index, key, lambda: add_remaining_self_loops(edge_index, num_nodes=num_nodes)
    )
    return made


def _once(edges: EdgeIndex, key: Any, make: Callable[[], Any]) -> Any:
    """What was made of the edges before, as long as they are not written to."""
    handle = edges.handle
    if handle.is_inference():
        return make()
    known = vars(handle).setdefault('kept_loops', {})
    state = handle._version, edges._space
    if key not in known or known[key][0] != state:
        with torch.inference_mode(False), torch.no_grad():  # it outlives the caller's mode
            known[key] = state, make()
    return known[key][1]
