"""What convs need the whole graph for in their forward, and what it is on a cut graph.

Each entry of :func:`special_forms` takes the place of a function of PyG during a conv's forward.
The arguments of a call decide what it does, whichever conv makes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import HGTConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import (
    assortativity,
    contains_isolated_nodes,
    contains_self_loops,
    get_laplacian,
    homophily,
)

from pyg_sar.comm import all_reduce_sum, sum_over_ranks
from pyg_sar.conv.around.gcn_norm import Normalizer
from pyg_sar.conv.around.patching import AnyFn, on_shards
from pyg_sar.conv.around.source_rows import Ends
from pyg_sar.conv.exchanges import Exchanges
from pyg_sar.rows.attach import derived, given_to_conv
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.edges import edge_index as make_edge_index
from pyg_sar.rows.rows import tag
from pyg_sar.rows.space import Space
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.join_relations import join_relations

ROW_BY_ROW = (HGTConv,)
"""Convs that sort all rows by type before a linear layer. That works row by row, so they run on
own rows."""


def special_forms(
    exchanges: Exchanges,
    ends: Ends,
    checked: set[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[AnyFn, AnyFn]:
    """The functions and their forms on a cut graph, for a conv that is called with these arguments.

    Functions whose inputs all ranks have checked are added to `checked`.
    """
    normalizer = Normalizer(exchanges, checked)

    def joint_edge_index(
        edge_index_dict: Mapping[Any, Tensor],
        src_offset_dict: Mapping[Any, int],
        dst_offset_dict: Mapping[Any, int],
        edge_attr_dict: Mapping[Any, Tensor] | None = None,
        num_nodes: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """``torch_geometric.utils.hetero.construct_bipartite_edge_index`` on a cut graph."""
        rows = _rows_by_type([*args, *kwargs.values()], dst_offset_dict)
        relations = list(src_offset_dict)
        edge_indices = [edge_index_dict[relation] for relation in relations]
        edge_index = join_relations(
            [e for e in edge_indices if isinstance(e, ShardEdgeIndex)],
            list(src_offset_dict.values()),
            [dst_offset_dict[relation[-1]] for relation in relations],
            sum(rows.values()),
        )
        if edge_attr_dict is None:
            return edge_index, None
        edge_attrs = []
        for relation, each in zip(relations, edge_indices, strict=True):
            is_named = isinstance(edge_attr_dict, torch.nn.ParameterDict)
            value = edge_attr_dict['__'.join(relation) if is_named else relation]
            if value.size(0) != each.size(1):
                value = value.expand(each.size(1), -1)
            edge_attrs.append(value)
        return edge_index, torch.cat(edge_attrs)

    return {
        gcn_norm: _of_rows(normalizer.gcn_norm),
        get_laplacian: _of_rows(normalizer.get_laplacian),
        construct_bipartite_edge_index: joint_edge_index,
    }


def _of_rows(form: AnyFn) -> AnyFn:
    """A normalisation of the edges of a rank and their weights, given those of the whole graph."""

    def of_rows(edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(edge_index, EdgeIndex):
            return form(edge_index, *args, **kwargs)
        args, kwargs = given_to_conv((args, kwargs), [edge_index], form.__name__)
        handle, weight = form(edge_index.handle, *args, **kwargs)
        found = vars(handle).get('of_rows')
        if found is None:
            call = inspect.signature(form).bind(edge_index, *args, **kwargs).arguments
            space = _space_of(handle, edge_index, call)
            handle.of_rows = found = make_edge_index(handle, space, edge_index.ends)
        return found, tag(weight, 0, found._space)

    return of_rows


def _space_of(handle: ShardEdgeIndex, given: EdgeIndex, call: Mapping[str, Any]) -> Space:
    """The edges of a result: those given, or with a loop at every node in place of those there."""
    against = call.get('flow', 'source_to_target') != 'source_to_target'
    if given.handle.is_flipped != against:
        return derived(given._space, handle)
    if not call.get('add_self_loops', True):
        return given._space
    src, dst = given.handle.as_subclass(Tensor)
    return given._space.selected(src != dst).joined((given.ends.dst,))


_OVER_ALL_EDGES = (assortativity, contains_isolated_nodes, contains_self_loops, homophily)


def _refusing(function: AnyFn) -> AnyFn:
    """A function that refuses the edges of one rank."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(
            f"'{function.__name__}' would see the edges of this rank alone (got those of a shard); "
            'compute it before partitioning'
        )

    return on_shards(function, refuse)


def semantic_attention(
    xs: list[Tensor], q: Tensor, k_lin: torch.nn.Module
) -> tuple[Tensor | None, Tensor | None]:
    """HAN's attention over relations, whose scores are means over the nodes of all ranks.

    `xs` are own rows ``[num_own, F]`` for every relation, `q` is the query ``[1, F]``, `k_lin` the
    projection of the keys. Gives the weighted sum ``[num_own, F]`` and the weights
    ``[num_relations]`` (collective).
    """
    if not xs:
        return None, None
    out = torch.stack(xs)
    count = all_reduce_sum(torch.tensor([out.size(1)], device=out.device))
    if int(count) == 0:
        return out.view(0, out.size(-1)), None
    keys = sum_over_ranks(torch.tanh(k_lin(out)).sum(1)) / count
    attention = F.softmax((q * keys).sum(-1), dim=0)
    return (attention.view(len(xs), 1, -1) * out).sum(0), attention


def _rows_by_type(values: list[Any], types: Mapping[Any, int]) -> dict[Any, int]:
    """Own rows of every node type, from the first dict of node tensors."""
    for value in values:
        if isinstance(value, Mapping) and value.keys() >= types.keys():
            tensors = [value[t] for t in types]
            if all(isinstance(t, Tensor) for t in tensors):
                return {t: value[t].size(0) for t in types}
    raise ValueError(f'expected a dict of the rows of node types {sorted(types)} (got none)')
