"""PyG's functions that normalise a whole graph or change its self loops, kept with the edges.

Both ends of a self loop are an own node, so they are removed and added on the ids of a rank: by the
rules of rows that would ask other ranks at every forward.

Normalisations (gcn_norm, get_laplacian) are PyG's own by the rules of rows: degrees of halo sources
come from their owners. Without weights they would make a plain tensor of ones for all edges of the
graph. So they get ones that are rows, after loops are added or removed as by PyG. A result is kept
while edges and weights stay and no weight takes a gradient: else every forward would fetch degrees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    get_laplacian,
    remove_self_loops,
    to_edge_index,
)

from pyg_sar.comm.vote import Agreed
from pyg_sar.nn.answers import Forward, note, recalled, state_of
from pyg_sar.nn.call_edges import into_own
from pyg_sar.nn.intercept import AnyFn, Forms
from pyg_sar.rows.adjacency import Adjacency, by_whole
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.edges import edge_index as make_edge_index
from pyg_sar.rows.from_data import conv_arguments
from pyg_sar.rows.rows import plain, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.edges import kept_on
from pyg_sar.utils.tensor_state import version_of

_MAX_RESULTS = 4

Result = tuple[EdgeIndex, Tensor]


def _removed(edges: EdgeIndex, edge_attr: Any = None) -> tuple[Any, Any]:
    """``remove_self_loops``."""
    if not _is_of_one_set(edges):
        return remove_self_loops(edges, edge_attr)

    def without_loops() -> tuple[Any, Tensor]:
        src, dst = edges.handle.ids
        is_kept: Tensor = tag(src != dst, 0, edges._sharding)
        return edges[:, is_kept], is_kept

    without, is_kept = kept_on(edges.handle, 'removed', without_loops, edges._sharding)
    return without, None if edge_attr is None else edge_attr[is_kept]


def _added(
    function: AnyFn,
    edges: EdgeIndex,
    edge_attr: Any = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> tuple[Any, Any]:
    """``add_self_loops``, or ``add_remaining_self_loops``, which removes others before."""
    nodes = edges.ends.dst
    count = min(num_nodes) if isinstance(num_nodes, (tuple, list)) else num_nodes
    # A word is a mean or the like of the edges into a node, whose sources may be the own ones.
    is_word = edge_attr is not None and isinstance(fill_value, str)
    is_here = _is_of_one_set(edges) and count == nodes.total
    if not is_here or (is_word and edges.handle.is_flipped):
        return function(edges, edge_attr, fill_value, num_nodes)
    before = _removed(edges)[0] if function is add_remaining_self_loops else edges

    def with_loops() -> EdgeIndex:
        handle = before.handle
        loops = torch.arange(nodes.own, device=handle.ids.device).repeat(2, 1)
        joined = handle.with_ids(torch.cat([handle.ids, loops], dim=1))
        return make_edge_index(joined, before._sharding.joined((nodes,)), edges.ends)

    added = kept_on(before.handle, 'added', with_loops, before._sharding)
    if edge_attr is None:
        return added, None
    own = conv_arguments(edge_attr, [edges], function.__name__)
    attributes = function(edges.handle.ids, own, fill_value, nodes.own)[1]
    return added, tag(attributes, 0, added._sharding)


def _is_of_one_set(edges: EdgeIndex) -> bool:
    """Whether edges of a cut graph run between nodes of one set."""
    src, dst = edges.ends.src, edges.ends.dst
    if src is not dst and not (src.has_ids() and dst.has_ids()):
        raise ValueError(
            'self loops cannot be told from other edges between these two sets of nodes: write '
            'add_self_loops=False, and add them before the graph is cut'
        )
    return src is dst


def _gcn_norm(
    edges: EdgeIndex,
    weight: Tensor | None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = 'source_to_target',
    dtype: torch.dtype | None = None,
) -> Result:
    nodes = edges.ends.dst
    if num_nodes not in (None, nodes.total):
        raise ValueError(
            f"expected one row per node in 'x': {nodes.total} rows (got {num_nodes}): a node that "
            'is made in forward is added before the graph is cut'
        )
    if weight is None:
        if add_self_loops:
            edges, _ = _added(add_remaining_self_loops, edges, num_nodes=num_nodes)
        weight, add_self_loops = _ones(edges, dtype), False
    edges, weight = gcn_norm(edges, weight, num_nodes, improved, add_self_loops, flow, dtype)
    against = flow != 'source_to_target'
    oriented, move = into_own(edges.handle, flip=against)
    if move is None:
        return edges, weight
    handle = oriented.flip() if against else oriented  # turned round here, not at every forward
    old, what = edges._sharding, 'edges turned round'
    sharding = Sharding(handle.num_edges, what=what, total=old.total, nodes=old.nodes)
    return make_edge_index(handle, sharding, edges.ends), tag(
        move.to_reversed(plain(weight)), 0, sharding
    )


def _laplacian(edges: EdgeIndex, weight: Tensor | None, *args: Any, **kwargs: Any) -> Result:
    if weight is None:
        edges, _ = _removed(edges)
        dtype = kwargs.get('dtype', args[1] if len(args) > 1 else None)
        weight = _ones(edges, dtype)
    result: Result = get_laplacian(edges, weight, *args, **kwargs)
    return result


def _ones(edges: EdgeIndex, dtype: torch.dtype | None) -> Any:
    ones = torch.ones(edges.handle.num_edges, dtype=dtype, device=edges.handle.ids.device)
    return tag(ones, 0, edges._sharding)


def _kept(
    function: AnyFn,
    on_rows: Callable[..., Result],
    edges: EdgeIndex,
    edge_weight: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Result:
    """A normalisation of the edges of a cut graph, computed again only where it changes.

    Collective with weights, where the answer of the last forward does not hold: one small
    all-gather.
    """
    handle, sharding, key = (
        edges.handle,
        edges._sharding,
        (function.__name__, args, *kwargs.items()),
    )

    def compute(weight: Tensor | None = None) -> tuple[Result, object]:
        result = on_rows(edges, weight, *args, **kwargs)
        return result, version_of(result[1])

    def is_written_to(kept: tuple[Result, object]) -> bool:
        return version_of(kept[0][1]) != kept[1]  # by a program, in place

    if edge_weight is None:
        kept = kept_on(handle, key, compute, sharding)
        if key in handle.kept and is_written_to(kept):
            del handle.kept[key]
            kept = kept_on(handle, key, compute, sharding)
        return kept[0]
    if edge_weight.shape[:1] != (edges.size(1),):
        raise ValueError(
            f"expected one row per edge in 'edge_weight': {edges.size(1)} rows "
            f'(got shape {tuple(edge_weight.shape)})'
        )
    own = conv_arguments(edge_weight, [edges], function.__name__)
    weight = tag(own.view_as(own), 0, sharding)
    if own.requires_grad or own.is_inference():
        return compute(weight)[0]
    known = recalled(key, handle, own)
    if known is not None:
        kept_edges, kept_weight = known
        return kept_edges, kept_weight
    results = kept_on(handle, function.__name__, lambda: Agreed(_MAX_RESULTS), sharding)
    state = state_of(own)
    content = (*key, id(own), *state)
    of_ranks, _ = results.find(content)
    if of_ranks is None or is_written_to(of_ranks[1]):
        with torch.inference_mode(False), torch.no_grad():  # it outlives the caller's mode
            # The id in `content` names `own` as long as that is kept.
            of_ranks = results.keep(content, (own, compute(weight)))
    result: Result = of_ranks[1][0]
    note(key, (handle, own), result, _is_still, state, of_ranks[1][1])
    return result


def _is_still(
    forward: Forward, about: list[Any], value: list[Any], states: tuple[Any, ...]
) -> bool:
    """Whether a kept normalisation is that of the same weights, and nobody has written to it."""
    return states == (forward.state(about[1]), version_of(value[1]))


def _entries(matrix: Any) -> tuple[Any, Any]:
    """``to_edge_index``."""
    if not isinstance(matrix, Adjacency) or matrix.value is None:
        entries: tuple[Any, Any] = to_edge_index(matrix)
        return entries
    return matrix.edges.flip(0), matrix.value


def _form(function: AnyFn, on_edges: AnyFn) -> AnyFn:
    """`on_edges` for the edges of a cut graph; a matrix is taken as a whole."""

    def form(edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(edge_index, Adjacency):
            return by_whole(function, edge_index, *args, **kwargs)
        of_cut = isinstance(edge_index, EdgeIndex)
        return (on_edges if of_cut else function)(edge_index, *args, **kwargs)

    return form


FORMS: Forms = {
    to_edge_index: _entries,
    remove_self_loops: _form(remove_self_loops, _removed),
    **{f: _form(f, partial(_added, f)) for f in (add_self_loops, add_remaining_self_loops)},
    gcn_norm: _form(gcn_norm, partial(_kept, gcn_norm, _gcn_norm)),
    get_laplacian: _form(get_laplacian, partial(_kept, get_laplacian, _laplacian)),
}
"""PyG's functions and what replaces them in a conv's forward. All other code in it is PyG's own and
runs by the rules of rows (:mod:`pyg_sar.rows`)."""
