"""The sums and dots of :mod:`pyg_sar.ops.spmm` by the compiled loop, and on several threads.

At the end of every operation of torch its threads wait for the slowest. Here every thread takes the
next piece when it is done with one, and all wait for each other once, at the end of a sum. One
piece writes a row, so results do not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.csr import Segments, chunks_of_segments
from pyg_sar.utils.installed import loops
from pyg_sar.utils.offload import arrays_of, watcher

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def side_by_side(pieces: Iterable[Callable[[], object]], device: torch.device) -> None:
    """Runs pieces of work that do not depend on each other, on as many threads as torch uses.

    The pieces compute without autograd. On a device other than a CPU they run one after another.
    """
    num_threads = torch.get_num_threads()
    if device.type != 'cpu' or num_threads == 1:
        for piece in pieces:
            piece()
        return
    is_inference, watch = torch.is_inference_mode_enabled(), watcher.value
    watched = nullcontext if watch is None else watch.in_thread

    def run(piece: Callable[[], object]) -> None:
        with torch.inference_mode(is_inference), torch.no_grad(), watched():
            piece()

    deque(_pool(num_threads).map(run, pieces), maxlen=0)  # raises what a piece has raised


def _pool(num_threads: int) -> ThreadPoolExecutor:
    with _lock:
        if num_threads not in _pools:
            start = threading.Barrier(num_threads + 1)

            def begin() -> None:
                torch.set_num_threads(1)
                # A thread that is asked first takes the number that was last set, whoever set it.
                torch.get_num_threads()
                start.wait()

            pool = ThreadPoolExecutor(num_threads, 'pyg_sar', begin)
            with watcher.set(None):  # the threads outlive the rank that comes first
                for _ in range(num_threads):
                    pool.submit(lambda: None)
            start.wait()
            torch.set_num_threads(num_threads)
            _pools[num_threads] = pool
        return _pools[num_threads]


def _forget() -> None:
    """In a process that was forked: threads are not."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forget)


_DTYPES = (torch.float32, torch.float64)

_CHUNK_EDGES = 1 << 16
"""Edges that a thread takes at a time."""
_EDGES_OF_SUMS, _MOST_SUMS = 2, 8
"""Chunks that add to the same rows have so many edges for each row, and are at most so many."""


def has_loop(values: Tensor) -> bool:
    """Whether :func:`run_loop` takes rows like `values`."""
    is_fit = values.device.type == 'cpu' and values.dtype in _DTYPES
    return is_fit and prod(values.shape[1:]) > 0 and loops() is not None


def run_loop(
    values: Tensor,
    segments: Segments,
    *,
    out: Tensor | None = None,
    weight: Tensor | None = None,
    own: Tensor | None = None,
    dots: Tensor | None = None,
    replace: bool = False,
) -> None:
    """Adds weighted sums to `out`, writes dots of rows of `own` and `values` to `dots`, or both.

    `values` is ``[num_cols, H, C]``, `out` and `own` ``[num_rows, H, C]``, `weight` and `dots`
    ``[num_edges, H]`` in edge order; `out` and `dots` are contiguous. With `replace` sums replace
    what `out` holds, and rows without a segment become zero. Raises IndexError if a column is no
    row.
    """
    if out is not None and replace and segments.leaves_rows_out:
        out.zero_()
    read = values, own, weight
    run_on_edges('sums_and_dots', segments, (out, dots), read, *values.shape[1:], ends=(replace,))


def run_on_edges(
    name: str,
    segments: Segments,
    written: Sequence[Tensor | None],
    read: Sequence[Any],
    *widths: int,
    ends: Sequence[Any] = (),
    adds: bool = False,
) -> None:
    """Runs a loop over edges, the segments of a chunk after those of another one on each thread.

    It gets what is written and read, pointers, columns, rows and edges of the segments, the
    `widths`, the first and last segment, and `ends`. With `adds` several chunks may add to one row
    of the first of `written`: each adds to zeros of its own. Raises IndexError if a column is no
    row of what is read first.
    """
    keys = segments.ptr.new_empty(0, dtype=torch.int64) if segments.keys is None else segments.keys
    perm = segments.columns[:0] if segments.perm is None else segments.perm
    first, *others = arrays_of(written, (*read, segments.ptr, segments.columns, keys, perm))
    loop, most = getattr(loops(), name), _CHUNK_EDGES

    def run(to: Any, start: int, end: int, *_: int) -> None:
        if not loop(to, *others, *widths, start, end, *ends):
            raise IndexError(f'expected columns below {read[0].size(0)} in a block')

    sums = written[0] if adds else None
    if sums is not None:
        most = max(most, _EDGES_OF_SUMS * sums.size(0), segments.columns.numel() // _MOST_SUMS)
    elif torch.get_num_threads() == 1:
        run(first, 0, segments.ptr.numel() - 1)
        return
    chunks = [*chunks_of_segments(segments, segments.ptr.numel(), most)]
    of_chunks = [] if sums is None else [torch.zeros_like(sums) for _ in chunks[1:]]
    targets = [first, *arrays_of(of_chunks, ())] if of_chunks else [first] * len(chunks)
    pieces = (partial(run, to, *chunk) for to, chunk in zip(targets, chunks, strict=True))
    side_by_side(pieces, segments.ptr.device)
    for of_chunk in of_chunks:
        sums.add_(of_chunk)
