"""Lets freed tensors go back to the operating system.

glibc raises its threshold for separate mappings, up to 32 MiB, whenever a large block is freed.
From then on tensors of that size come from the heap, whose holes stay with the process: on an
arxiv-size graph cut into 8 parts a rank held twice the memory that its tensors need (measured).
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_MMAP_THRESHOLD = -3  # malloc.h


def return_freed_memory(threshold: int = 4 << 20) -> bool:
    """Makes the C library give back large blocks as soon as they are freed, in this process.

    Larger allocations then cost a page fault per page each time. Only glibc has such a setting;
    elsewhere, or if the environment variable MALLOC_MMAP_THRESHOLD_ is set, nothing is changed.

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
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(threshold)))
