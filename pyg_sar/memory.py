"""How tensors take memory from the operating system, and give it back.

Large tensors go back as soon as they are freed, and cost a page fault for every page of 4 KiB when
memory comes again: 890,000 in an epoch of GraphSAGE on an arxiv-size graph. On huge pages they are
15,000, and the epoch takes 0.68 of the time at the same memory (measured). torch asks for them
where the environment variable THP_MEM_ALLOC_ENABLE is 1; it looks once, at its first tensor. So
pyg_sar sets it when it is imported, unless the user has; that is in time if it is imported before
torch_geometric, which makes tensors.

glibc raises its threshold for separate mappings, up to 32 MiB, whenever a large block is freed.
From then on tensors of that size come from the heap, whose holes stay with the process: on an
arxiv-size graph cut into 8 parts a rank held twice the memory that its tensors need (measured).
An allocator that keeps large blocks with little waste, such as tcmalloc, has neither trouble; it
must be preloaded (docs/speed.md).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

import torch

from pyg_sar.monitor import say

_logger = logging.getLogger(__name__)

_M_MMAP_THRESHOLD = -3  # malloc.h
_HUGE_PAGES = 'THP_MEM_ALLOC_ENABLE'  # c10/core/alignment.h, c10/core/impl/alloc_cpu.cpp


def has_huge_pages() -> bool:
    """Whether torch asks for huge pages for large tensors in this process.

    Not collective::

        print(pyg_sar.memory.has_huge_pages())
    """
    # Blocks from 2 MiB on begin at a page then; those of malloc begin behind its header.
    blocks = [torch.empty(2 << 20, dtype=torch.uint8) for _ in range(3)]
    return all(block.data_ptr() % 4096 == 0 for block in blocks)


def return_freed_memory(threshold: int = 4 << 20) -> bool:
    """Makes the C library give back large blocks as soon as they are freed, in this process.

    Larger allocations then cost a page fault per page each time. Only glibc has such a setting;
    elsewhere, or if the environment variable ``MALLOC_MMAP_THRESHOLD_`` is set, nothing is changed.
    :class:`pyg_sar.DistributedDataParallel` calls it. Not collective::

        pyg_sar.memory.return_freed_memory()

    Args:
        threshold: Size in bytes from which a block is given back.

    Returns:
        Whether the setting was made.

    Raises:
        ValueError: If `threshold` is not positive.
    """
    if threshold < 1:
        raise ValueError(f"'threshold' must be positive (got {threshold})")
    if not sys.platform.startswith('linux') or 'MALLOC_MMAP_THRESHOLD_' in os.environ:
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, 'gnu_get_libc_version'):
        return False
    is_set = bool(libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(threshold)))
    if is_set and not has_huge_pages():
        say(
            _logger,
            logging.INFO,
            'large tensors are not on huge pages, which costs up to a third of the time: import '
            f'pyg_sar before torch_geometric, or set {_HUGE_PAGES}=1',
        )
    return is_set


os.environ.setdefault(_HUGE_PAGES, '1')
