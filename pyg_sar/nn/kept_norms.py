"""Normalisations of the whole graph (gcn_norm, get_laplacian), kept with the edges.

PyG's own functions run by the rules of rows: degrees of halo sources come from their owners.
Without weights they would make a plain tensor of ones for all edges of the graph. So they get ones
that are rows, after loops are added or removed as by PyG. A result is kept while edges and weights
stay and no weight takes a gradient: else every forward would fetch degrees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import get_laplacian, to_edge_index

from pyg_sar.comm.agreed import Agreed
from pyg_sar.nn.exchanges import into_own
from pyg_sar.nn.intercept import AnyFn, Forms
from pyg_sar.nn.kept_loops import LOOPS, all_added, removed
from pyg_sar.rows.adjacency import Adjacency, by_whole
from pyg_sar.rows.edges import EdgeIndex, edge_index
from pyg_sar.rows.from_data import conv_arguments, derived
from pyg_sar.rows.rows import plain, tag
from pyg_sar.shard.edges import kept_on
from pyg_sar.utils.checksum import checksum
from pyg_sar.utils.tensor_state import version_of

_MAX_RESULTS = 4

Result = tuple[EdgeIndex, Tensor]
_Versioned = tuple[EdgeIndex, Tensor, object]
"""A result, and the version of its weights."""


def _gcn_norm(
    edges: EdgeIndex,
    weight: Tensor | None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = 'source_to_target',
    dtype: torch.dtype | None = None,
) -> Result:
    if weight is None:
        if add_self_loops:
            edges, _ = all_added(edges, num_nodes=num_nodes)
        weight, add_self_loops = _ones(edges, dtype), False
    edges, weight = gcn_norm(edges, weight, num_nodes, improved, add_self_loops, flow, dtype)
    against = flow != 'source_to_target'
    oriented, move = into_own(edges.handle, flip=against)
    if move is None:
        return edges, weight
    handle = oriented.flip() if against else oriented  # turned round here, not at every forward
    space = derived(edges._space, handle)
    return edge_index(handle, space, edges.ends), tag(move.to_reversed(plain(weight)), 0, space)


def _laplacian(
    edges: EdgeIndex,
    weight: Tensor | None,
    normalization: str | None = None,
    dtype: torch.dtype | None = None,
    num_nodes: int | None = None,
) -> Result:
    if weight is None:
        edges, _ = removed(edges)
        weight = _ones(edges, dtype)
    result: Result = get_laplacian(edges, weight, normalization, dtype, num_nodes)
    return result


def _ones(edges: EdgeIndex, dtype: torch.dtype | None) -> Any:
    ones = torch.ones(edges.handle.num_edges, dtype=dtype, device=edges.handle.ids.device)
    return tag(ones, 0, edges._space)


def _kept(function: AnyFn, on_rows: Callable[..., Result]) -> AnyFn:
    """A normalisation of the edges of a cut graph, computed again only where it changes.

    Collective with weights: one small all-gather.
    """

    def normalized(edges: Any, edge_weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(edges, Adjacency):
            return by_whole(function, edges, edge_weight, *args, **kwargs)
        if not isinstance(edges, EdgeIndex):
            return function(edges, edge_weight, *args, **kwargs)
        handle, key = edges.handle, (function.__name__, args, tuple(kwargs.items()))

        def compute(weight: Tensor | None) -> _Versioned:
            out = on_rows(edges, weight, *args, **kwargs)
            return *out, version_of(out[1])

        if edge_weight is None:
            kept = kept_on(handle, key, lambda: compute(None), edges._space)
            if _is_written_to(kept) and not handle.ids.is_inference():
                del handle.kept[key]
                kept = kept_on(handle, key, lambda: compute(None), edges._space)
            return kept[:2]
        if edge_weight.shape[:1] != (edges.size(1),):
            raise ValueError(
                f"expected one row per edge in 'edge_weight': {edges.size(1)} rows "
                f'(got shape {tuple(edge_weight.shape)})'
            )
        own = conv_arguments(edge_weight, [edges], function.__name__)
        weight = tag(own.view_as(own), 0, edges._space)
        if own.requires_grad or own.is_inference():
            return compute(weight)[:2]
        results = kept_on(handle, function.__name__, lambda: Agreed(_MAX_RESULTS), edges._space)
        content = (*key, id(own), version_of(own), checksum(own))
        of_ranks, _ = results.find(content)
        if of_ranks is None or _is_written_to(of_ranks[1]):
            with torch.inference_mode(False), torch.no_grad():  # it outlives the caller's mode
                # The id in `content` names `own` as long as that is kept.
                of_ranks = results.keep(content, (own, compute(weight)))
        return of_ranks[1][:2]

    return normalized


def _entries(matrix: Any) -> tuple[Any, Any]:
    """``to_edge_index``."""
    if not isinstance(matrix, Adjacency) or matrix.value is None:
        entries: tuple[Any, Any] = to_edge_index(matrix)
        return entries
    return matrix.edges.flip(0), matrix.value


def _is_written_to(result: _Versioned) -> bool:
    """Whether a program has changed the weights that it got, in place."""
    return version_of(result[1]) != result[2]


FORMS: Forms = {
    **LOOPS,
    to_edge_index: _entries,
    gcn_norm: _kept(gcn_norm, _gcn_norm),
    get_laplacian: _kept(get_laplacian, _laplacian),
}
"""PyG's functions and what replaces them in a conv's forward. All other code in it is PyG's own and
runs by the rules of rows (:mod:`pyg_sar.rows`)."""
