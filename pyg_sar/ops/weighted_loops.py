"""The sums and dots of :mod:`pyg_sar.ops.spmm` by the compiled loop, and on several threads.

At the end of every operation of torch its threads wait for the slowest. Here every thread takes the
next piece when it is done with one, and all wait for each other once, at the end of a sum. One
piece writes a row, so results do not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from math import prod

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
    module, (heads, channels) = loops(), values.shape[1:]
    assert module is not None
    if out is not None and replace and segments.leaves_rows_out:
        out.zero_()
    keys = segments.ptr.new_empty(0, dtype=torch.int64) if segments.keys is None else segments.keys
    perm = segments.columns[:0] if segments.perm is None else segments.perm
    read = own, values, segments.ptr, segments.columns, keys, perm, weight
    arrays = arrays_of((out, dots), read)
    loop = partial(module.sums_and_dots, *arrays, heads, channels)

    def run(start: int, end: int, first: int, last: int) -> None:
        if not loop(start, end, replace):
            raise IndexError(f'expected columns below {values.size(0)} in a block')

    on_chunks(run, segments)


def on_chunks(run: Callable[[int, int, int, int], object], segments: Segments) -> None:
    """Calls `run` with the first and last segment, and edge, of every chunk, on all threads."""
    if torch.get_num_threads() == 1:
        run(0, segments.ptr.numel() - 1, 0, segments.columns.numel())
        return
    chunks = chunks_of_segments(segments, segments.ptr.numel(), _CHUNK_EDGES)
    side_by_side((partial(run, *chunk) for chunk in chunks), segments.ptr.device)
