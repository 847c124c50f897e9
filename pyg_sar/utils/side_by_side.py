"""Pieces of work on several threads.

At the end of every operation of torch its threads wait for the slowest. Here every thread takes the
next piece when it is done with one, and all wait for each other once, at the end of all pieces.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch

from pyg_sar.utils.offload import watcher

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
