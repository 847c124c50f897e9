"""The edges of a block in chunks, whose tensors stay in the cache.

What a message function computes for an edge does not depend on other edges. So a block's rows are
received once, and its edges are computed in chunks of a few MiB. Edges of a block are sorted by
destination, so a chunk concerns a range of destinations only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyg_sar.shard.blocks import Block, Plan
from pyg_sar.shard.shard import Kept

CHUNK_BYTES = 2 << 20
"""Bytes that the largest tensor of a chunk may take on a CPU.

Well below the size from which :func:`pyg_sar.utils.malloc.return_freed_memory` has blocks given
back: the tensors of a chunk would cost a page fault for every page of every chunk.
"""

CUDA_CHUNK_BYTES = 256 << 20
"""On a GPU, where small operations take as long as larger ones."""

MIN_EDGES = 256
_CHUNKS: Kept[dict[int, list[list[Chunk]]]] = Kept()


def edges_within(edge_bytes: int, device: torch.device) -> int:
    """Edges of a chunk at most, from the bytes that its largest tensor takes for one edge.

    No state of the machine counts: where a chunk ends decides the last bits of gradients.
    """
    num_bytes = CHUNK_BYTES if device.type == 'cpu' else CUDA_CHUNK_BYTES
    return max(num_bytes // max(edge_bytes, 1), MIN_EDGES)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some edges of a block, in its order."""

    number: int  # among the chunks of all blocks
    block: Block  # of these edges alone
    rows: slice  # the destinations from the first to the last of the edges
    starts: Tensor  # what `src` and `dst` are counted from, int64 ``[2, 1]``

    @property
    def edge_index(self) -> Tensor:
        """Source row of the block, destination counted from `rows`: int64 ``[2, num_edges]``."""
        edges = self.block.edges
        if isinstance(edges, slice):
            return self.block.all_edges[:, edges] - self.starts
        return self._kept_ids.long()

    @cached_property
    @torch.inference_mode(False)
    def _kept_ids(self) -> Tensor:
        # Ids that lie apart take longer to gather than those of a range: 8 bytes an edge are kept.
        return (self.block.take(self.block.all_edges, dim=1) - self.starts).int()

    def at_rows(self, values: Tensor, dim: int) -> Tensor:
        """The chunk's destinations in dimension `dim`, a view."""
        return values.narrow(dim, self.rows.start, self.rows.stop - self.rows.start)


def of_blocks(plan: Plan, max_edges: int) -> list[list[Chunk]]:
    """The chunks of every block, remembered."""
    kept = _CHUNKS.of(plan, dict)
    if max_edges not in kept:
        chunks: list[list[Chunk]] = []
        for block in plan.blocks:
            chunks.append(_cut(block, plan, max_edges, sum(map(len, chunks))))
        kept[max_edges] = chunks  # complete: another thread may read it
    return kept[max_edges]


@torch.inference_mode(False)  # it outlives the caller's mode
def _cut(block: Block, plan: Plan, max_edges: int, number: int) -> list[Chunk]:
    firsts = list(range(0, block.num_edges, max_edges))
    if not firsts:
        return []
    ends = [min(first + max_edges, block.num_edges) for first in firsts]
    all_edges, device = block.edges, plan.edge_index.device
    outer = torch.tensor([firsts, [end - 1 for end in ends]], device=device)
    outer = outer + all_edges.start if isinstance(all_edges, slice) else all_edges[outer]
    dst = plan.edge_index[1][outer]
    starts = torch.stack([torch.full_like(dst[0], block.start), dst[0]])
    chunks = []
    for i, (first_dst, last_dst) in enumerate(dst.t().tolist()):
        edges = (
            slice(all_edges.start + firsts[i], all_edges.start + ends[i])
            if isinstance(all_edges, slice)
            else all_edges[firsts[i] : ends[i]]
        )
        rows = slice(first_dst, last_dst + 1)
        chunks.append(Chunk(number + i, replace(block, edges=edges), rows, starts[:, i : i + 1]))
    return chunks
