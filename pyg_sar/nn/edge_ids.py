"""Ids of edges in the whole graph, also of edges that a model or a conv made.

Convs add self loops and models select edges, so stored ids do not reach all edges. An edge is named
by its ends and by its number among the edges between them, in their order: neither a partition nor
a selection changes that order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyg_sar.comm.exchange import with_halo_ids
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.shard import Shard
from pyg_sar.utils.rng import hashed, hashed_on


def has_ids(shard: Shard) -> bool:
    """Whether the ids of the nodes at both ends are known; the same on all ranks."""
    return shard.n_id is not None and (shard.dst_id is not None or not shard.is_bipartite)


@torch.inference_mode(False)  # they outlive the caller's mode
def edge_ids(edges: ShardEdges) -> Tensor:
    """A hash of ends and number of every edge, int64 ``[num_edges]``.

    The shard of the edges :func:`has_ids`. Collective at the first time for a shard: one
    all-to-all for the ids of the halo, which it keeps.
    """
    shard = edges.shard
    assert shard.n_id is not None
    ids = with_halo_ids(shard, shard.n_id)
    src, dst = edges.sources_first().ids
    of_dst = shard.dst_id if shard.is_bipartite else shard.n_id
    assert of_dst is not None
    number = _number_among_equals(dst * max(ids.numel(), 1) + src)
    return hashed_on(hashed(0).to(src.device), of_dst[dst], ids[src], number)


def _number_among_equals(values: Tensor) -> Tensor:
    """How many equal values come before each."""
    order = torch.argsort(values, stable=True)
    ordered = values[order]
    positions = torch.arange(values.numel(), device=values.device)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(begins, positions, 0).cummax(0).values
    return torch.empty_like(order).index_copy_(0, order, positions - first)
