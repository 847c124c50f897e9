"""The graph as METIS wants it, made in passes that hold a 128th of it in memory.

Every edge is dealt, both ways, into buckets of rows; then each bucket is sorted, duplicates are
dropped, and its columns are written back to where they begin.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.mapped import Int64Array, Scratch, release, trim
from pyg_sar.partitioner.on_disk.neighbours import BothWays
from pyg_sar.partitioner.on_disk.rows import chunk_rows, ranges


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
    edges = BothWays(edge_index, num_nodes, scratch)
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    columns, end = edges.buckets.columns[0], 0
    for bucket, start, stop in edges.rows():
        row, column = _rows_and_columns(edges.buckets.read_field(bucket, 0), num_nodes)
        indptr[start + 1 : stop + 1] = row.sub_(start).bincount(minlength=stop - start)
        place = columns[end : end + column.numel()]
        place[:] = column
        release(place)
        end += column.numel()
        del row, column
    indptr.cumsum_(0)
    trim()
    return indptr, columns[:end]


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
