"""The edges of a block grouped by destination or by source: a CSR matrix without values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

MAX_EDGES = torch.iinfo(torch.int32).max
"""Edges of a block at most: they are counted with 32 bits, as the kernels do."""


def check_block_edges(num_edges: int) -> None:
    """Raises ValueError if a block has more edges than 32 bits can count."""
    if num_edges > MAX_EDGES:
        raise ValueError(
            f'expected at most {MAX_EDGES} edges from the nodes of one part into those of one rank '
            f'(got {num_edges}); use more parts'
        )


class Segments(NamedTuple):
    """A sparse 0/1 matrix by rows; empty rows are left out where they are many."""

    # The rows, int64 ``[num_segments]``; None for all rows in their order, empty ones included.
    keys: Tensor | None
    # int32 ``[num_segments + 1]``: entries of segment s are ``columns[ptr[s]:ptr[s + 1]]``.
    ptr: Tensor
    columns: Tensor  # column of every entry, int32 ``[num_edges]``
    # Edge of every entry, int32 ``[num_edges]`` (int64 if there are too many); None when entries
    # are in edge order.
    perm: Tensor | None
    num_rows: int  # number of rows, empty ones included

    @property
    def leaves_rows_out(self) -> bool:
        """Whether there are rows without a segment."""
        return self.keys is not None and self.keys.numel() < self.num_rows


def make_segments(
    rows: Tensor,
    cols: Tensor,
    num_rows: int,
    *,
    is_sorted: bool = False,
    node_order: Tensor | None = None,
) -> Segments:
    """Groups edges by row; `is_sorted` says that rows, int64 ``[num_edges]``, ascend already.

    `node_order` are all rows in the order that the segments get, int64 ``[num_rows]``.
    """
    check_block_edges(rows.numel())
    if node_order is not None:
        positions = torch.empty_like(node_order)
        positions[node_order] = torch.arange(num_rows, device=node_order.device)
        segments = make_segments(positions[rows], cols, num_rows)
        return segments._replace(
            keys=node_order if segments.keys is None else node_order[segments.keys]
        )
    perm = None
    if not is_sorted:
        perm = torch.argsort(rows, stable=True)
        cols = cols[perm]
        perm = perm.int()
    counts = torch.bincount(rows, minlength=num_rows)
    keys = None
    if 2 * int(counts.count_nonzero()) < num_rows:
        keys = counts.nonzero().view(-1)
        counts = counts[keys]
    ptr = torch.zeros(counts.numel() + 1, dtype=torch.int32, device=rows.device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=ptr[1:])
    return Segments(keys, ptr, cols.int(), perm, num_rows)


def compacted(segments: Segments) -> tuple[Tensor, Segments]:
    """The columns that have entries, int64 ascending, and segments that count among them."""
    columns, ids = torch.unique(segments.columns, return_inverse=True)
    return columns.long(), segments._replace(columns=ids.int())


def chunks_of_segments(
    segments: Segments, max_segments: int, max_edges: int
) -> Iterator[tuple[int, int, int, int]]:
    """Runs of segments: their first and last segment, and their first and last edge.

    A run has at most so many segments and edges, but one segment at least; on a GPU one has all.
    """
    ptr, num_segments = segments.ptr, segments.ptr.numel() - 1
    num_edges = segments.columns.numel()
    is_one = num_segments <= max_segments and num_edges <= max_edges
    if is_one or ptr.device.type != 'cpu':
        if num_segments:
            yield 0, num_segments, 0, num_edges
        return
    start, first = 0, 0
    while start < num_segments:
        within = int(torch.searchsorted(ptr, first + max_edges, right=True)) - 1
        end = max(min(start + max_segments, within, num_segments), start + 1)
        last = int(ptr[end])
        yield start, end, first, last
        start, first = end, last
