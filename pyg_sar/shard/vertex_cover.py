"""Which rows of a remote block travel, and which sums of them: a vertex cover of its edges.

An edge is served where the row of its source travels, or where the sum over its destination's edges
travels, made by the owner of the sources. So the choices are the vertex covers of the block's
bipartite graph, and the fewest rows travel with a smallest one. It is as large as a largest
matching (Koenig 1931), but a matching takes a search along paths; this one is greedy:

- Where a vertex has one edge left, the other end of it is part of some smallest cover: taking it
  is exact (Karp and Sipser, FOCS 1981).
- Otherwise all vertices of nearly the largest degree are taken.
- Where all sources or all destinations are fewer, they are taken, as in dense blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyg_sar.shard.blocks import Block

_SHARE = 0.8
"""Vertices of more than this share of the largest degree are taken together."""

_MAX_ROUNDS = 200
"""After so many rounds all sources are taken that still have edges: paths may be long."""

_PAYS = 0.9
"""Sums travel if what travels is at most this share of the halo rows of all ranks."""


def covers_pay(size: float, num_halo: int) -> bool:
    """Whether sums travel, where covers of all ranks have `size` rows instead of `num_halo`."""
    return size <= _PAYS * num_halo


def vertex_cover(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor]:
    """A small set of sources and destinations that every edge has an end in, as two masks."""
    # One graph: destinations come after sources. Repeated edges count once.
    pairs, num = torch.unique(src * max(num_dst, 1) + dst), num_src + num_dst
    a, b = ends = pairs // max(num_dst, 1), pairs % max(num_dst, 1) + num_src
    taken = torch.zeros(num, dtype=torch.bool, device=src.device)
    for _ in range(_MAX_ROUNDS):
        if not a.numel():
            break
        degree = torch.bincount(a, minlength=num) + torch.bincount(b, minlength=num)
        is_leaf_a, is_leaf_b = degree[a] == 1, degree[b] == 1
        if bool((is_leaf_a | is_leaf_b).any()):
            taken[a[is_leaf_b]] = True
            taken[b[is_leaf_a & ~is_leaf_b]] = True
        else:
            taken |= degree > int(degree.max()) * _SHARE
        is_left = ~(taken[a] | taken[b])
        a, b = a[is_left], b[is_left]
    taken[a] = True
    used = torch.zeros_like(taken).index_fill_(0, torch.cat(ends), True)
    is_src, is_dst = taken[:num_src], taken[num_src:]
    if int(used[:num_src].sum()) <= int(taken.sum()):  # all sources, as without sums
        is_src = used[:num_src]
    elif int(used[num_src:].sum()) < int(taken.sum()):
        is_src = torch.zeros_like(is_src)
    # An end that no edge needs is left out.
    return is_src, torch.zeros_like(is_dst).index_fill_(0, dst[~is_src[src]], True)


@dataclass(frozen=True, eq=False)
class BlockCover:
    """What travels for a remote block: some of its source rows, and sums for some destinations."""

    block: Block
    rows: Tensor  # source rows of the block, int64 ascending
    sums: Tensor  # own destinations, int64 ascending
    by_row: Tensor  # indices of the block's edges that rows serve, int64 ascending
    by_sum: Tensor  # indices of those that sums serve

    @property
    def size(self) -> int:
        """Number of rows that travel."""
        return self.rows.numel() + self.sums.numel()

    def summed_edges(self) -> tuple[Tensor, Tensor]:
        """Source row of the block and index in :attr:`sums` of the edges that sums serve."""
        src, dst = self.block.edge_index[:, self.by_sum]
        return src, torch.searchsorted(self.sums, dst)

    def reading_block(self, weight: Tensor | None) -> CoveredBlock:
        """The block that reads what travels: the rows, then the sums.

        `weight` are constant weights ``[num_edges]`` of all edges of the plan, or None for ones.
        """
        src, dst = self.block.edge_index[:, self.by_row]
        num_rows, num_sums = self.rows.numel(), self.sums.numel()
        sums = torch.arange(num_rows, num_rows + num_sums, device=src.device)
        src = torch.cat([torch.searchsorted(self.rows, src), sums])
        dst = torch.cat([dst, self.sums])
        order = torch.argsort(dst, stable=True)
        if weight is not None:
            of_rows = self.block.take(weight)[self.by_row]
            weight = torch.cat([of_rows, of_rows.new_ones(num_sums)])[order]
        return CoveredBlock(
            part=self.block.part,
            num_rows=num_rows + num_sums,
            num_dst=self.block.num_dst,
            start=0,
            edges=slice(0, order.numel()),
            all_edges=torch.stack([src, dst]).int()[:, order],
            node_order=(None, None),
            weight=weight,
        )


@dataclass(frozen=True, eq=False)
class CoveredBlock(Block):
    """A block of what travels: an edge from a row, or from a sum to its destination."""

    # Weights of these edges ``[num_edges]``, 1 for those from sums; None for ones.
    weight: Tensor | None = field(repr=False)

    def span(self, values: Tensor) -> Tensor:
        """The block's own weights: `values`, those of the plan's edges, hold the same."""
        assert self.weight is not None
        return self.weight


def cover_of(block: Block) -> BlockCover:
    """The rows and sums that travel for a remote block."""
    src, dst = block.edge_index
    is_row, is_sum = vertex_cover(src, dst, block.num_rows, block.num_dst)
    by_row = is_row[src]
    masks = is_row, is_sum, by_row, ~by_row
    return BlockCover(block, *(mask.nonzero().view(-1) for mask in masks))
