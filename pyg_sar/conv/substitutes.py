"""Functions of PyG that have a faster form on a cut graph, or need a form of their own there.

They stand in for PyG's during a conv's forward. Everything else in it runs from PyG's code, by the
rules of rows (:mod:`pyg_sar.rows`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import HGTConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import get_laplacian
from torch_geometric.utils.hetero import construct_bipartite_edge_index

from pyg_sar.conv.around.gcn_norm import Normalizer
from pyg_sar.conv.around.kept_loops import loop_forms
from pyg_sar.conv.around.patching import AnyFn, Forms, replaced
from pyg_sar.rows.attach import derived, given_to_conv
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.edges import edge_index as make_edge_index
from pyg_sar.rows.rows import tag
from pyg_sar.rows.space import Space
from pyg_sar.shard.edge_index import ShardEdgeIndex, kept_on
from pyg_sar.shard.join_relations import join_relations

ROW_BY_ROW = (HGTConv,)
"""Convs that sort all rows by type before a linear layer, which works row by row: they run on own
rows."""


def special_forms() -> Forms:
    """The functions and their forms, for forwards of one kind."""
    normalizer = Normalizer()
    return {
        **loop_forms(),
        gcn_norm: _of_rows(gcn_norm, normalizer.gcn_norm),
        get_laplacian: _of_rows(get_laplacian, normalizer.get_laplacian),
    }


def _of_rows(function: AnyFn, form: AnyFn) -> AnyFn:
    """A normalisation of the edges of a rank and their weights, given those of the whole graph."""

    def of_rows(edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(edge_index, EdgeIndex):
            return function(edge_index, *args, **kwargs)
        args, kwargs = given_to_conv((args, kwargs), [edge_index], form.__name__)
        handle, weight = form(edge_index.handle, *args, **kwargs)

        def made() -> EdgeIndex:
            call = inspect.signature(form).bind(edge_index, *args, **kwargs).arguments
            return make_edge_index(handle, _space_of(handle, edge_index, call), edge_index.ends)

        found = kept_on(handle, 'of rows', made, edge_index._space)
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


def relations_joined(x_dict: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """``construct_bipartite_edge_index`` for a conv that is given own rows by type."""

    def joint_edge_index(
        edge_index_dict: Mapping[Any, Any],
        src_offset_dict: Mapping[Any, int],
        dst_offset_dict: Mapping[Any, int],
        edge_attr_dict: Mapping[str, Tensor],
        num_nodes: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        relations = list(src_offset_dict)
        handles = [edge_index_dict[relation] for relation in relations]
        edge_index = join_relations(
            handles,
            list(src_offset_dict.values()),
            [dst_offset_dict[relation[-1]] for relation in relations],
            sum(x.size(0) for x in x_dict.values()),
        )
        attributes = [
            edge_attr_dict['__'.join(relation)].expand(each.size(1), -1)
            for relation, each in zip(relations, handles, strict=True)
        ]
        return edge_index, torch.cat(attributes)

    return replaced({construct_bipartite_edge_index: joint_edge_index})
