"""Settings of how tensors take memory from the operating system and give it back.

New memory for large tensors costs a page fault for every page of 4 KiB: 890,000 in an epoch of
GraphSAGE on an arxiv-size graph. With huge pages there are 15,000 faults, and the epoch takes 0.68
of the time (measured). torch asks for huge pages if THP_MEM_ALLOC_ENABLE is 1 at its first tensor.
So `import pyg_sar` sets it first of all (:mod:`pyg_sar.utils.openmp`); import it before
torch_geometric.

glibc takes tensors of up to 32 MiB from the heap once a large block was freed, and the holes of the
heap stay with the process: a rank of 8 held twice the memory that its tensors need (measured).
Another allocator, preloaded, has neither trouble (docs/speed.md).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

import torch

from pyg_sar.utils.log import say

_logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LARGEST_IN_HEAP = 32 << 20  # HEAP_MAX_SIZE / 2
_HUGE_PAGES = 'THP_MEM_ALLOC_ENABLE'  # c10/core/alignment.h, c10/core/impl/alloc_cpu.cpp


def has_huge_pages() -> bool:
    """Whether torch asks for huge pages for large tensors in this process.

    Not collective.
    """
    # With huge pages, blocks from 2 MiB on begin at a page; those of malloc follow its header.
    blocks = [torch.empty(2 << 20, dtype=torch.uint8) for _ in range(3)]
    return all(block.data_ptr() % 4096 == 0 for block in blocks)


def return_freed_memory(threshold: int = 4 << 20) -> bool:
    """Makes the C library give back large blocks as soon as they are freed, in this process.

    Larger allocations then cost a page fault per page each time. Only glibc has such a setting;
    elsewhere, or if the environment variable ``MALLOC_MMAP_THRESHOLD_`` is set, nothing is changed.
    :class:`pyg_sar.DistributedDataParallel` calls it where there are several ranks. Not collective.

    Args:
        threshold: Size in bytes from which a block is given back.

    Returns:
        Whether the setting was made.

    Raises:
        ValueError: If `threshold` is not positive.
    """
    if threshold < 1:
        raise ValueError(f"'threshold' must be positive (got {threshold})")
    if 'MALLOC_MMAP_THRESHOLD_' in os.environ:
        return False
    is_set = _set_option(_M_MMAP_THRESHOLD, threshold)
    if is_set and not has_huge_pages():
        say(
            _logger,
            logging.INFO,
            'large tensors are not on huge pages, which costs up to a third of the time: import '
            f'pyg_sar before torch_geometric, or set {_HUGE_PAGES}=1',
        )
    return is_set


def _share_heap() -> bool:
    """Makes all threads share one heap for small blocks; returns whether the setting was made.

    For threads that run one at a time: the holes of a heap of its own would stay with a thread.
    """
    return _set_option(_M_ARENA_MAX, 1)


def _keep_freed_memory() -> None:
    """Makes glibc keep freed blocks of up to 32 MiB for later tensors."""
    _set_option(_M_TRIM_THRESHOLD, 2**31 - 1)
    _set_option(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


def _give_back_kept_memory(threshold: int) -> None:
    """Makes glibc give back all free memory now, and later freed blocks from `threshold` bytes."""
    _set_option(_M_MMAP_THRESHOLD, threshold)
    if _set_option(_M_TRIM_THRESHOLD, 128 << 10):
        ctypes.CDLL(None).malloc_trim(0)


def _set_option(option: int, value: int) -> bool:
    """Sets an option of malloc; returns whether the C library is glibc and has accepted it."""
    libc = ctypes.CDLL(None) if sys.platform.startswith('linux') else None
    if libc is None or not hasattr(libc, 'gnu_get_libc_version'):
        return False
    return bool(libc.mallopt(option, ctypes.c_int(value)))
