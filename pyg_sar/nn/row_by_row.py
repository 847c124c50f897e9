"""HGTConv on own rows: it sorts all rows by type before a linear layer, which works row by row."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import HGTConv
from torch_geometric.utils.hetero import construct_bipartite_edge_index

from pyg_sar.nn.intercept import replaced
from pyg_sar.shard.edges import ShardEdges, join_relations

ROW_BY_ROW = (HGTConv,)
"""Convs that sort all rows by type before a linear layer, which works row by row: they run on own
rows."""


def relations_joined(x_dict: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """``construct_bipartite_edge_index`` for a conv on own rows by type."""

    def joint_edge_index(
        edge_index_dict: Mapping[Any, Any],
        src_offset_dict: Mapping[Any, int],
        dst_offset_dict: Mapping[Any, int],
        edge_attr_dict: Mapping[str, Tensor],
        num_nodes: int | None = None,
    ) -> tuple[ShardEdges, Tensor]:
        relations = list(src_offset_dict)
        handles = [edge_index_dict[relation] for relation in relations]
        edge_index = join_relations(
            handles,
            list(src_offset_dict.values()),
            [dst_offset_dict[relation[-1]] for relation in relations],
            sum(x.size(0) for x in x_dict.values()),
        )
        attributes = [
            edge_attr_dict['__'.join(relation)].expand(handle.num_edges, -1)
            for relation, handle in zip(relations, handles, strict=True)
        ]
        return edge_index, torch.cat(attributes)

    return replaced({construct_bipartite_edge_index: joint_edge_index})
