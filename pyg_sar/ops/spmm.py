"""Sums over the edges of one block (SpMM), and the gradient of their weights (SDDMM).

``torch.nn.functional.embedding_bag`` sums rows without the ``[num_edges, F]`` temporary of gather
and scatter; on a CPU it is three to eight times faster than ``index_add_``. Its own backward is
slow, so backward is a sum over the transposed block. With a weight for every head it runs once for
every head, beside ``sampled_addmm``; below a few channels, gather and multiply in chunks that stay
in the cache are faster; on a GPU a CSR product (measured: docs/speed.md). Where numba is installed
a compiled loop replaces all sums by head on a CPU (:mod:`pyg_sar.utils.numba_loops`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from pyg_sar.ops.weighted_loops import has_loop, run_loop
from pyg_sar.shard.blocks import Block
from pyg_sar.shard.csr import MAX_EDGES, Segments, chunks_of_segments
from pyg_sar.shard.index_rows import rows_at, write_rows_at
from pyg_sar.utils.side_by_side import side_by_side

_SEGMENT_BYTES, _EDGE_BYTES = 2 << 20, 1 << 20

_CHUNK_EDGES = 1 << 17
"""Edges of a chunk whose rows are not gathered."""

_FAST_DTYPES = (torch.float32, torch.float64)
_BAG_DTYPES = (*_FAST_DTYPES, torch.float16, torch.bfloat16)
_MIN_CHANNELS_OF_BAGS, _MIN_CHANNELS_OF_SAMPLES = 4, 8


def segment_sums(
    values: Tensor,
    segments: Segments,
    weight: Tensor | None = None,
    *,
    factor: Tensor | None = None,
) -> Tensor:
    """The weighted sum of every segment, ``[num_rows, ...]``; zeros for rows without entries.

    One pass that writes the result only, unless there are heads; otherwise as
    :func:`add_segment_sums`.
    """
    has_heads = weight is not None and weight.dim() == 2
    if has_heads or segments.keys is not None or segments.ptr.numel() == 1:
        out = values.new_empty(segments.num_rows, *values.shape[1:])
        return add_segment_sums(out, values, segments, weight, factor=factor, replace=True)
    weight = _entry_weights(segments, weight, factor)
    return _segment_sums(values, segments, weight, 0, segments.num_rows)


def add_segment_sums(
    out: Tensor,
    values: Tensor,
    segments: Segments,
    weight: Tensor | None = None,
    *,
    factor: Tensor | None = None,
    replace: bool = False,
) -> Tensor:
    """Adds the weighted sum of every segment to its row of `out` ``[num_rows, F]``; gives `out`.

    For the edges e of segment s, ``out[keys[s]] += sum of weight[e] * values[columns[e]]``, in
    chunks of a few MiB per thread: a temporary of the size of `out` would cost a page fault for
    every page.

    `values` are ``[num_cols, F]`` of the same dtype, and multiplied by `factor` ``[num_cols]`` in
    no pass of its own. `weight` is ``[num_edges]`` in edge order, or None for ones; with one for
    every head ``[num_edges, H]`` rows are ``[H, C]``. With `replace` the sums replace what `out`
    holds; rows without a segment become zero.
    """
    if weight is not None and weight.dim() == 2:
        return add_weighted_sums(out, values, segments, weight, replace=replace)
    if replace and segments.leaves_rows_out:
        out.zero_()
    num_segments = segments.ptr.numel() - 1
    weight = _entry_weights(segments, weight, factor)
    step = max(num_segments, 1)
    if out.device.type == 'cpu':
        row_bytes = out.element_size() * max(out.size(1), 1)
        step = max(_SEGMENT_BYTES // row_bytes, 1)

    def add(start: int) -> None:
        end = min(start + step, num_segments)
        sums = _segment_sums(values, segments, weight, start, end)
        if segments.keys is not None:
            put = out.index_copy_ if replace else out.index_add_
            put(0, segments.keys[start:end], sums)
        elif replace:
            out[start:end] = sums
        else:
            out[start:end] += sums

    starts = range(0, num_segments, step)
    if len(starts) == 1:
        add(0)
    else:
        side_by_side((partial(add, start) for start in starts), out.device)
    return out


def _entry_weights(
    segments: Segments, weight: Tensor | None, factor: Tensor | None
) -> Tensor | None:
    if weight is not None and segments.perm is not None:
        weight = weight.index_select(0, segments.perm)
    if factor is None:
        return weight
    factor = factor.index_select(0, segments.columns)
    return factor if weight is None else factor.mul_(weight)


def _segment_sums(
    values: Tensor, segments: Segments, weight: Tensor | None, start: int, end: int
) -> Tensor:
    """The sums of segments `start` to `end`, ``[end - start, F]``."""
    ptr, columns = segments.ptr, segments.columns
    if (start, end) != (0, ptr.numel() - 1):
        first, last = int(ptr[start]), int(ptr[end])
        ptr = ptr[start : end + 1] - first
        columns = columns[first:last]
        weight = None if weight is None else weight[first:last]
    if values.dtype not in _BAG_DTYPES or values.size(1) == 0 or columns.numel() == 0:
        out = values.new_zeros(end - start, 1, values.size(1))
        by_head = None if weight is None else weight.unsqueeze(1)
        part = Segments(None, ptr, columns, None, end - start)
        return add_by_index_add(out, values.unsqueeze(1), part, by_head).squeeze(1)
    return embedding_bag(
        columns,
        values.detach(),  # so it makes nothing for a backward of its own
        ptr,
        mode='sum',
        per_sample_weights=None if weight is None else weight.to(values.dtype),
        include_last_offset=True,
    )


def add_weighted_sums(
    out: Tensor, values: Tensor, segments: Segments, weight: Tensor, *, replace: bool = False
) -> Tensor:
    """As :func:`add_segment_sums` of one dtype, with a weight ``[num_edges, H]`` for every head.

    ``out[keys[s], h] += sum of weight[e, h] * values[columns[e], h]``, of rows ``[H, C]``; nothing
    of ``[num_edges, H, C]`` is made.
    """
    if has_loop(values) and out.is_contiguous():
        run_loop(values, segments, out=out, weight=weight, replace=replace)
        return out
    heads, channels = values.shape[1:]
    is_fast = values.dtype in _FAST_DTYPES and (
        channels >= _MIN_CHANNELS_OF_BAGS or channels == heads == 1
    )
    is_in_place = replace and is_fast and segments.keys is None
    if replace and (not is_fast or segments.leaves_rows_out):
        out.zero_()
    if not is_fast:
        return add_by_index_add(out, values, segments, weight)
    # Pairs of a node and a head as rows: embedding_bag would copy the strided rows of one head.
    pairs, is_product = values.reshape(-1, channels), _has_cusparse(values, segments)
    max_segments = _SEGMENT_BYTES // (out.element_size() * heads * channels)

    def add(start: int, end: int, first: int, last: int) -> None:
        if is_product:
            ptr, columns = segments.ptr[start : end + 1] - first, segments.columns[first:last]
        else:
            ptr, columns = _of_pairs(segments, pairs, heads, start, end, first, last)
        by_head = _in_segment_order(weight, segments, first, last).t().contiguous()
        sums = out[start:end] if is_in_place else out.new_empty(end - start, heads, channels)
        for head in range(heads):
            if is_product:
                matrix = _pattern(ptr, columns, by_head[head], values.size(0))
                sums[:, head] = matrix @ values[:, head]
                continue
            sums[:, head] = embedding_bag(
                columns,
                pairs[head:],
                ptr,
                mode='sum',
                per_sample_weights=by_head[head],
                include_last_offset=True,
            )
        if segments.keys is not None:
            put = out.index_copy_ if replace else out.index_add_
            put(0, segments.keys[start:end], sums)
        elif not is_in_place:
            out[start:end] += sums

    chunks = chunks_of_segments(segments, max_segments, _CHUNK_EDGES)
    side_by_side((partial(add, *chunk) for chunk in chunks), out.device)
    return out


def weighted_sums_and_dots(
    out: Tensor, dots: Tensor, grad: Tensor, rows: Tensor, block: Block, weight: Tensor
) -> None:
    """Writes both gradients of :func:`add_weighted_sums`: of its values and of its weights.

    Those of the values are `out` ``[num_cols, H, C]``, of the weights `dots` ``[num_edges, H]``,
    contiguous, for the gradient `grad` ``[num_rows, H, C]`` of the sums and the values `rows`. A
    compiled loop reads every row of `grad` once for both.
    """
    if has_loop(grad) and out.is_contiguous():
        run_loop(grad, block.by_src, out=out, weight=weight, own=rows, dots=dots, replace=True)
        return
    edge_dots(dots, grad, rows, block.by_dst)
    add_weighted_sums(out, grad, block.by_src, weight, replace=True)


def edge_dots(out: Tensor, left: Tensor, right: Tensor, segments: Segments) -> Tensor:
    """Writes the gradient of the weights of :func:`add_weighted_sums`.

    For the edges e of segment b, ``out[e, h] = <left[keys[b], h], right[columns[e], h]>``, of
    ``[num_rows, H, C]`` and ``[num_cols, H, C]``. `out` is ``[num_edges, H]``, contiguous.
    """
    if has_loop(right):
        run_loop(right, segments, own=left, dots=out)
        return out
    is_fast = (
        left.dtype in _FAST_DTYPES
        and left.size(2) >= _MIN_CHANNELS_OF_SAMPLES
        # With repeated edges: on a CPU it refuses more entries than a matrix has places.
        and segments.ptr.numel() > 1
        and (
            int(segments.ptr.diff().max()) <= right.size(0)
            if left.device.type == 'cpu'
            else _has_cusparse(right, segments)
        )
    )
    form = _dots_by_sampling if is_fast else _dots_by_gather
    return form(out, left, right, segments)


def _dots_by_sampling(out: Tensor, left: Tensor, right: Tensor, segments: Segments) -> Tensor:
    heads, channels = left.shape[1:]
    pairs = right.reshape(-1, channels)

    def make(start: int, end: int, first: int, last: int) -> None:
        ptr, columns = _of_pairs(segments, pairs, heads, start, end, first, last)
        rows = left[start:end] if segments.keys is None else left[segments.keys[start:end]]
        zeros = left.new_zeros(last - first)
        dots = []
        for head in range(heads):
            of_head = pairs[head:]
            pattern = _pattern(ptr, columns, zeros, of_head.size(0))
            product = torch.sparse.sampled_addmm(pattern, rows[:, head], of_head.t(), beta=0.0)
            dots.append(product.values())
        _put(out, segments, first, last, torch.stack(dots, 1))

    chunks = chunks_of_segments(segments, segments.ptr.numel(), _CHUNK_EDGES)
    side_by_side((partial(make, *chunk) for chunk in chunks), out.device)
    return out


def _of_pairs(
    segments: Segments, pairs: Tensor, heads: int, start: int, end: int, first: int, last: int
) -> tuple[Tensor, Tensor]:
    """Segments `start` to `end`, edges `first` to `last`, of pairs of a node and its first head."""
    ptr, columns = segments.ptr[start : end + 1] - first, segments.columns[first:last]
    if pairs.size(0) > MAX_EDGES:  # 32 bits do not count that far
        ptr, columns = ptr.long(), columns.long()
    return ptr, columns * heads


def _has_cusparse(values: Tensor, segments: Segments) -> bool:
    """Whether a GPU may take sparse products, for `segments` of rows of `values`.

    Their last bits differ from run to run, and they take no more entries than a matrix has.
    """
    num_places = (segments.ptr.numel() - 1) * values.size(0)
    is_possible = values.device.type != 'cpu' and segments.columns.numel() <= num_places
    return is_possible and not torch.are_deterministic_algorithms_enabled()


def _pattern(ptr: Tensor, columns: Tensor, values: Tensor, num_cols: int) -> Tensor:
    size = ptr.numel() - 1, num_cols
    return torch.sparse_csr_tensor(ptr, columns, values, size, check_invariants=False)


def add_by_index_add(
    out: Tensor, values: Tensor, segments: Segments, weight: Tensor | None
) -> Tensor:
    """The form for few channels and other dtypes, and the oracle of the tests."""
    for segment_rows, columns, first, last in _edge_chunks(segments, values):
        rows = values.index_select(0, columns)
        if weight is not None:
            rows *= _in_segment_order(weight, segments, first, last).unsqueeze(-1)
        out.index_add_(0, segment_rows, rows)
    return out


def _dots_by_gather(out: Tensor, left: Tensor, right: Tensor, segments: Segments) -> Tensor:
    """The form for few channels and other dtypes, and the oracle of the tests."""
    for segment_rows, columns, first, last in _edge_chunks(segments, left):
        rows = right.index_select(0, columns)
        rows *= left.index_select(0, segment_rows)
        _put(out, segments, first, last, rows.sum(-1))
    return out


def _in_segment_order(weight: Tensor, segments: Segments, first: int, last: int) -> Tensor:
    if segments.perm is None:
        return weight[first:last]
    return rows_at(weight, segments.perm[first:last])


def _put(out: Tensor, segments: Segments, first: int, last: int, dots: Tensor) -> None:
    if segments.perm is None:
        out[first:last] = dots
    else:
        write_rows_at(out, segments.perm[first:last].long(), dots)


def _edge_chunks(segments: Segments, values: Tensor) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """Row and column of every edge, a chunk of the edges at a time; first and last of them."""
    num_edges = segments.columns.numel()
    row_bytes = values.element_size() * max(values[0:1].numel(), 1)
    # Elsewhere than on a CPU a small chunk costs more to start than to compute.
    chunk_bytes = _EDGE_BYTES if values.device.type == 'cpu' else 64 * _EDGE_BYTES
    step = max(chunk_bytes // row_bytes, 1)
    for first in range(0, num_edges, step):
        last = min(first + step, num_edges)
        edges = torch.arange(first, last, dtype=torch.int32, device=segments.ptr.device)
        segment = torch.bucketize(edges, segments.ptr, out_int32=True, right=True) - 1
        rows = segment if segments.keys is None else segments.keys[segment]
        yield rows, segments.columns[first:last], first, last


# torch warns of sparse CSR tensors at the first one that a process makes. A training run is no
# place for it, so it is made here.
with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    _pattern(
        torch.zeros(2, dtype=torch.int32), torch.empty(0, dtype=torch.int32), torch.empty(0), 1
    )
