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

from pyg_sar.partitioner.buckets import Buckets, bucket_bounds, bucket_of, count_to_ptr
from pyg_sar.partitioner.mapped import Scratch, release, trim
from pyg_sar.partitioner.rows import chunk_rows, edge_chunks, ranges

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
    indptr, columns = _neighbours(edge_index, num_nodes, scratch or Scratch())
    return indptr.numpy(), _in_memory(columns)


def _neighbours(edge_index: Tensor, num_nodes: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The same with the neighbours in scratch space."""
    ends = (end[src != dst] for _, src, dst in edge_chunks(edge_index) for end in (src, dst))
    ptr = count_to_ptr(ends, num_nodes)
    bounds = bucket_bounds(ptr, torch.tensor([0, num_nodes]))
    # An entry is one number, row * N + column: below 2^63 for up to 3 * 10^9 nodes.
    bucket = bucket_of(bounds)
    buckets = Buckets(ptr[bounds], [torch.int64], scratch)
    for _, src, dst in edge_chunks(edge_index):
        kept = src != dst
        src, dst = src[kept], dst[kept]
        for row, column in ((src, dst), (dst, src)):
            buckets.add(bucket.index_select(0, row), row * num_nodes + column)

    del bucket

    indptr, entries, end = ptr.zero_(), buckets.columns[0], 0
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        row, column = _rows_and_columns(buckets.read_field(number, 0), num_nodes)
        indptr[start + 1 : stop + 1] = row.sub_(start).bincount(minlength=stop - start)
        place = entries[end : end + column.numel()]
        place[:] = column
        release(place)
        end += column.numel()
        del row, column
    indptr.cumsum_(0)
    trim()
    return indptr, entries[:end]


def _in_memory(columns: Tensor) -> Int64Array:
    index = np.empty(columns.numel(), dtype=np.int64)
    for start, stop in ranges(index.size, chunk_rows(index.size)):
        part = columns[start:stop]
        index[start:stop] = part.numpy()
        release(part)
    return index


def _rows_and_columns(entries: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Of ``row * num_nodes + column`` in any order, without duplicates, sorted."""
    keys: Int64Array = entries.numpy()
    keys.sort()
    keep = np.ones(keys.shape, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    unique = torch.from_numpy(keys[keep])
    row = unique // num_nodes
    return row, unique.sub_(row, alpha=num_nodes)
