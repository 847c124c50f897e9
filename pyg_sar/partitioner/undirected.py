"""The graph as METIS wants it, made in three passes that hold a 128th of it in memory.

1. Count the neighbours of every node, duplicates included.
2. Deal every edge, both ways, into buckets of consecutive rows, in scratch space: 16 bytes an edge.
3. Sort each bucket, drop duplicates, and write its columns back to where they begin.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyg_sar.partitioner.buckets import Buckets, bucket_bounds, bucket_of, counts_to_ptr
from pyg_sar.partitioner.mapped import Scratch, release
from pyg_sar.partitioner.rows import count_into, edge_chunks

Int64Array = npt.NDArray[np.int64]


def undirected_csr(
    edge_index: Tensor, num_nodes: int, *, scratch: Scratch | None = None
) -> tuple[Int64Array, Int64Array]:
    """The graph symmetric, without duplicate edges and self loops.

    Args:
        edge_index: [2, E], any directed graph; in memory or mapped.
        num_nodes: Number of nodes N.
        scratch: Where to work; in memory if None.

    Returns:
        indptr int64 [N + 1] and index int64, the neighbours of every node in ascending order;
        64-bit, as METIS takes nothing else without a copy.
    """
    num_neighbours = torch.zeros(num_nodes, dtype=torch.int64)
    for _, src, dst in edge_chunks(edge_index):
        kept = src != dst
        count_into(num_neighbours, src[kept])
        count_into(num_neighbours, dst[kept])
    ptr = counts_to_ptr(num_neighbours)
    del num_neighbours
    bounds = bucket_bounds(ptr, torch.tensor([0, num_nodes]))
    # An entry is one number, row * N + column: below 2^63 for up to 3 * 10^9 nodes.
    bucket = bucket_of(bounds)
    buckets = Buckets(ptr[bounds], [torch.int64], scratch or Scratch())
    for _, src, dst in edge_chunks(edge_index):
        kept = src != dst
        src, dst = src[kept], dst[kept]
        for row, column in ((src, dst), (dst, src)):
            buckets.add(bucket.index_select(0, row), row * num_nodes + column)

    del bucket

    indptr, entries, end = ptr.zero_(), buckets.columns[0], 0
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        keys = buckets.read(number)[0].numpy()
        unique = torch.from_numpy(_sorted_unique(keys))
        del keys
        row = unique // num_nodes
        indptr[start + 1 : stop + 1] = (row - start).bincount(minlength=stop - start)
        place = entries[end : end + unique.numel()]
        torch.sub(unique, row.mul_(num_nodes), out=place)
        release(place)
        end += unique.numel()
    torch.cumsum(indptr, 0, out=indptr)
    index = np.empty(end, dtype=np.int64)
    for start in range(0, end, _COPIED):
        part = entries[start : min(start + _COPIED, end)]
        index[start : start + part.numel()] = part.numpy()
        release(part)
    return indptr.numpy(), index


_COPIED = 1 << 22
"""Entries copied at a time."""


def _sorted_unique(keys: Int64Array) -> Int64Array:
    keys.sort()
    keep = np.ones(keys.shape, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    return keys[keep]
