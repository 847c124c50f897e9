"""Every edge in both directions, by rows, in passes that hold a 128th of the edges in memory.

1. Count the edges of every node, both ways.
2. Deal every edge, both ways, into buckets of consecutive rows, in scratch space.

What comes after sorts one bucket at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.buckets import Buckets, bucket_bounds, bucket_of, count_to_ptr
from pyg_sar.partitioner.on_disk.mapped import Scratch
from pyg_sar.partitioner.on_disk.rows import edge_chunks


class BothWays:
    """Records ``row * N + column`` of every edge and its reverse, by buckets of rows.

    One number is below 2^63 for up to 3 * 10^9 nodes.

    Args:
        edge_index: [2, E], any directed graph; in memory or mapped.
        num_nodes: Number of nodes N.
        scratch: Where the records lie: 16 bytes an edge, 32 with numbers.
        has_loops: Whether self loops are among them, then twice as well.
        has_numbers: Whether the number of the edge, a second field, comes with each; that of its
            reverse is greater by E.

    Attributes:
        buckets: The records.
        bounds: Bucket b has the rows from ``bounds[b]`` to ``bounds[b + 1]``.
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        scratch: Scratch,
        *,
        has_loops: bool = False,
        has_numbers: bool = False,
    ) -> None:
        def edges() -> Iterator[tuple[int, Tensor, Tensor]]:
            for start, src, dst in edge_chunks(edge_index):
                if not has_loops:
                    kept = src != dst
                    src, dst = src[kept], dst[kept]
                yield start, src, dst

        ptr = count_to_ptr((ids for _, *ends in edges() for ids in ends), num_nodes)
        cuts = bucket_bounds(ptr, torch.tensor([0, num_nodes]))
        dtypes = [torch.int64] * (1 + has_numbers)
        self.buckets = Buckets(ptr[cuts], dtypes, scratch)
        self.bounds: list[int] = cuts.tolist()
        del ptr
        bucket = bucket_of(cuts)
        for start, src, dst in edges():
            for number, row, column in ((start, src, dst), (start + edge_index.size(1), dst, src)):
                fields = [row * num_nodes + column]
                if has_numbers:
                    fields.append(torch.arange(number, number + row.numel()))
                self.buckets.add(bucket.index_select(0, row), *fields)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Every bucket with its first row and the one after its last."""
        bounds = enumerate(pairwise(self.bounds))
        return ((number, start, stop) for number, (start, stop) in bounds)
