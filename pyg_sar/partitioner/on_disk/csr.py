"""The graph as partitioners read it: the neighbours of every node, in both directions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.on_disk.buckets import counts_to_ptr
from pyg_sar.partitioner.on_disk.mapped import FloatArray, IndexArray, Int64Array
from pyg_sar.partitioner.on_disk.rows import count_into, edge_chunks


def symmetric_csr(edge_index: Tensor, num_nodes: int) -> tuple[Int64Array, IndexArray]:
    """Every edge both ways, duplicates and self loops too, by counting instead of sorting.

    Needs 8 bytes per edge (16 from 2**31 nodes on) beside the nodes' counts.

    Args:
        edge_index: [2, E], any directed graph; in memory or mapped.
        num_nodes: Number of nodes N.

    Returns:
        indptr int64 [N + 1] and index int32 [2 * E] (int64 from 2**31 nodes on).
    """
    degree = torch.zeros(num_nodes, dtype=torch.int64)
    for _, src, dst in edge_chunks(edge_index):
        count_into(degree, src)
        count_into(degree, dst)
    indptr = counts_to_ptr(degree).numpy()
    index = np.empty(int(indptr[-1]), dtype=np.int32 if num_nodes < 2**31 else np.int64)
    end = indptr[:-1].copy()
    for is_reversed in (False, True):
        for _, src, dst in edge_chunks(edge_index):
            row, col = (dst, src) if is_reversed else (src, dst)
            order = torch.argsort(row, stable=True)
            rows = row[order].numpy()
            nodes, first, count = np.unique(rows, return_index=True, return_counts=True)
            rank = np.arange(len(rows)) - np.repeat(first, count)
            index[end[rows] + rank] = col[order].numpy()
            end[nodes] += count
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
