"""The graph as partitioners read it: the neighbours of every node, in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyg_sar.partitioner.balance import FloatArray, Int64Array

IndexArray = npt.NDArray[Any]
"""int32 or int64."""

_CHUNK = 1 << 22
"""Edges sorted at a time, so that nothing as large as the graph is made beside the result."""


def undirected_csr(edge_index: Tensor, num_nodes: int) -> tuple[Int64Array, Int64Array]:
    """The graph as METIS wants it: symmetric, without duplicates and self loops.

    Returns:
        indptr int64 [N + 1] and index int64, the neighbours of every node in ascending order.
    """
    src, dst = edge_index.numpy()
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    loop_free = low != high
    pairs = _sorted_unique(low[loop_free] * num_nodes + high[loop_free])
    low, high = np.divmod(pairs, num_nodes)
    both = np.sort(np.concatenate([pairs, high * num_nodes + low]))
    row, index = np.divmod(both, num_nodes)
    return _pointers(np.bincount(row, minlength=num_nodes)), index


def symmetric_csr(edge_index: Tensor, num_nodes: int) -> tuple[Int64Array, IndexArray]:
    """Every edge both ways, duplicates and self loops too, by counting instead of sorting.

    Needs 8 bytes per edge (16 from 2**31 nodes on) where :func:`undirected_csr` takes ten times as
    many.

    Returns:
        indptr int64 [N + 1] and index int32 [2 * E] (int64 from 2**31 nodes on).
    """
    src, dst = edge_index.numpy()
    degree = np.zeros(num_nodes, dtype=np.int64)
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(src), _CHUNK)]
    for chunk in chunks:
        degree += np.bincount(src[chunk], minlength=num_nodes)
        degree += np.bincount(dst[chunk], minlength=num_nodes)
    indptr = _pointers(degree)
    index = np.empty(2 * len(src), dtype=np.int32 if num_nodes < 2**31 else np.int64)
    end = indptr[:-1].copy()
    for row, col in ((src, dst), (dst, src)):
        for chunk in chunks:
            order = np.argsort(row[chunk], kind='stable')
            rows = row[chunk][order]
            rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
            index[end[rows] + rank] = col[chunk][order]
            end += np.bincount(rows, minlength=num_nodes)
    return indptr, index


def neighbours_by_part(
    indptr: IndexArray,
    index: IndexArray,
    parts: Int64Array,
    nodes: slice | Int64Array,
    num_parts: int,
) -> FloatArray:
    """How many neighbours each of some nodes has in every part, [B, P].

    Args:
        indptr: int64 [N + 1].
        index: int32 or int64, the neighbours.
        parts: int64 [N], the part of every node or -1.
        nodes: A run of nodes, or int64 [B].
        num_parts: Number of parts P.
    """
    if isinstance(nodes, slice):
        ptr = indptr[nodes.start : nodes.stop + 1]
        degree, neighbours = np.diff(ptr), index[ptr[0] : ptr[-1]]
    else:
        first = indptr[nodes]
        degree = indptr[nodes + 1] - first
        shift = np.repeat(first - (np.cumsum(degree) - degree), degree)
        neighbours = index[shift + np.arange(len(shift))]
    row = np.repeat(np.arange(len(degree)), degree)
    # Column 0 collects neighbours without a part.
    cell = row * (num_parts + 1) + parts[neighbours] + 1
    count = np.bincount(cell, minlength=len(degree) * (num_parts + 1))
    return count.reshape(-1, num_parts + 1)[:, 1:].astype(np.float64)


def _pointers(counts: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _sorted_unique(keys: Int64Array) -> Int64Array:
    keys.sort()
    keep = np.ones(keys.shape, dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=keep[1:])
    return keys[keep]
