"""Self loops on a cut graph, for the nodes that get one.

Own nodes come first in local ids, so PyG's functions are right if they are given the number of own
nodes. Without it they take the largest id of the edges, which only the whole graph can answer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, add_self_loops, remove_self_loops

from pyg_sar.comm import Exchange, agree
from pyg_sar.conv.around.patching import AnyFn
from pyg_sar.conv.exchanges import Exchanges
from pyg_sar.shard.edge_index import ShardEdgeIndex


def self_loop_forms(exchanges: Exchanges) -> dict[AnyFn, AnyFn]:
    """PyG's functions of self loops, and their forms on the shards of a forward."""

    def removed(edge_index: Tensor, *args: Any, **kwargs: Any) -> Any:
        _check(edge_index)
        return remove_self_loops(edge_index, *args, **kwargs)

    def adding(function: AnyFn) -> AnyFn:
        """Collective without `num_nodes`: one all-to-all and one small all-gather."""

        def added(
            edge_index: Tensor,
            edge_attr: Tensor | None = None,
            fill_value: Any = None,
            num_nodes: Any = None,
        ) -> Any:
            _check(edge_index)
            if not isinstance(edge_index, ShardEdgeIndex) or num_nodes is not None:
                return function(edge_index, edge_attr, fill_value, num_nodes)
            has_loop = _is_counted(edge_index, exchanges.of(edge_index))
            edge_index, edge_attr = function(edge_index, edge_attr, fill_value, has_loop.numel())
            # The loops are the last edges.
            is_kept = has_loop.new_ones(edge_index.size(1))
            is_kept[is_kept.numel() - has_loop.numel() :] = has_loop
            return edge_index[:, is_kept], None if edge_attr is None else edge_attr[is_kept]

        return added

    adders = (add_self_loops, add_remaining_self_loops)
    return {remove_self_loops: removed, **{function: adding(function) for function in adders}}


def _is_counted(edge_index: ShardEdgeIndex, exchange: Exchange) -> Tensor:
    """Own nodes whose id is not above all ids that edges name, bool ``[num_own]``."""
    n_id = exchange.shard.n_id
    if n_id is None:
        raise ValueError(
            "expected 'num_nodes' for the self loops of edges that are not of load_shard (got none)"
        )
    src, dst = edge_index.as_subclass(Tensor)
    if edge_index.is_flipped:
        src, dst = dst, src
    ids = torch.cat([n_id, *exchange.fetch_all([n_id])])
    ends = torch.cat([ids[src], n_id[dst]])
    largest = max(agree(int(ends.max()) if ends.numel() else -1))
    return n_id <= largest


def _check(edge_index: Tensor) -> None:
    """Raises a ValueError on edges between two sets: node i of one is not i of the other."""
    if isinstance(edge_index, ShardEdgeIndex) and edge_index.shard.is_bipartite:
        raise ValueError(
            'self loops have no meaning between two sets of nodes (got a conv that adds or '
            'removes them; give it add_self_loops=False)'
        )
