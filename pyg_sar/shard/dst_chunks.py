"""The edges of a plan by chunks of destinations, each with all in-edges of its destinations.

Some aggregations (median, LSTM) need all messages of a destination at once. A chunk has these, and
a bounded number of rows. Its edges keep the order of the original graph, in which LSTM and GRU read
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyg_sar.shard.blocks import Plan


@dataclass(frozen=True, eq=False)
class DestinationChunk:
    """A range of own destinations with all their in-edges."""

    dst: slice
    # Indices of the edges in edge tensors, int64 ``[num_edges]``: by destination, and
    # within a destination in the order of the whole graph.
    edges: Tensor
    # int64 ``[2, num_edges]``: rows of the chunk's sources, destinations from zero.
    edge_index: Tensor
    own: Tensor  # own rows among the sources, int64
    halo: Tensor  # halo rows among them, int64, from zero; they follow the own rows

    @property
    def num_dst(self) -> int:
        """Number of destinations."""
        return int(self.dst.stop - self.dst.start)


@torch.inference_mode(False)
def make_chunks(plan: Plan, max_rows: int, max_dst: int | None = None) -> list[DestinationChunk]:
    """Cuts the own destinations into runs of at most `max_rows` in-edges, one destination at least.

    A chunk has `max_dst` destinations at most.
    """
    shard, edge_index = plan.shard, plan.edge_index
    dst = edge_index[1]
    if plan.is_whole and shard.e_id is not None:  # within a destination as in the whole graph
        by_id = torch.argsort(shard.e_id)
        order = by_id[torch.argsort(dst[by_id], stable=True)]
    else:
        order = torch.argsort(dst, stable=True)
    ends = plan.in_degree.cumsum(0)
    chunks: list[DestinationChunk] = []
    start, first = 0, 0
    while start < shard.num_dst or not chunks:
        # The last destination that still fits, or the first one.
        limit = torch.tensor(first + max_rows, device=ends.device)
        end = max(int(torch.searchsorted(ends, limit, right=True)), start + 1)
        end = min(end, shard.num_dst, start + (max_dst or shard.num_dst))
        last = int(ends[end - 1]) if end else 0
        edges = order[first:last]
        src, dst = edge_index[:, edges]
        rows, src = torch.unique(src, return_inverse=True)
        is_own = rows < shard.num_own
        chunks.append(
            DestinationChunk(
                dst=slice(start, end),
                edges=edges,
                edge_index=torch.stack([src, dst - start]),
                own=rows[is_own],
                halo=rows[~is_own] - shard.num_own,
            )
        )
        start, first = end, last
    return chunks


def no_chunk(plan: Plan) -> DestinationChunk:
    """A chunk of nothing, for a rank that has none left."""
    empty = plan.edge_index[1][:0]
    num_dst = plan.shard.num_dst
    return DestinationChunk(slice(num_dst, num_dst), empty, plan.edge_index[:, :0], empty, empty)
