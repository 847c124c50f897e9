"""How tensors take memory from the system and give it back; imported before torch.

New memory costs a page fault for every page of 4 KiB: 890,000 in an epoch of GraphSAGE on an
arxiv-size graph. With huge pages there are 15,000, and the epoch takes 0.68 of the time (measured).
torch asks for huge pages if THP_MEM_ALLOC_ENABLE is 1 at its first tensor, which importing PyG
makes. And a thread of the OpenMP of GCC that waits for the others spins, at the cost of other
programs; GOMP_SPINCOUNT, read when torch is imported, says how long (docs/speed.md). So importing
pyg_sar sets both first of all, where the user has not.

glibc takes tensors of up to 32 MiB from the heap once a large block was freed, and the holes of the
heap stay with the process: a rank of 8 held twice the memory that its tensors need (measured).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys

SET = {'THP_MEM_ALLOC_ENABLE': '1', 'GOMP_SPINCOUNT': '10000'}
"""What is set in this process, as the user has not."""

for _name in [name for name in SET if name in os.environ]:
    del SET[_name]
if 'OMP_WAIT_POLICY' in os.environ:
    SET.pop('GOMP_SPINCOUNT', None)
os.environ.update(SET)

_M_MMAP_THRESHOLD = -3  # malloc.h


def has_huge_pages() -> bool:
    """Whether torch asks for huge pages for large tensors in this process."""
    import torch

    # With huge pages, blocks from 2 MiB on begin at a page; those of malloc follow its header.
    blocks = [torch.empty(2 << 20, dtype=torch.uint8) for _ in range(3)]
    return all(block.data_ptr() % 4096 == 0 for block in blocks)


def return_freed_memory(threshold: int = 4 << 20) -> None:
    """Has glibc give blocks of `threshold` bytes or more back as soon as they are freed.

    Each of them then costs its page faults. Nothing is changed with another C library, or if the
    user has set ``MALLOC_MMAP_THRESHOLD_``.
    """
    libc = ctypes.CDLL(None) if sys.platform.startswith('linux') else None
    if 'MALLOC_MMAP_THRESHOLD_' in os.environ or not hasattr(libc, 'gnu_get_libc_version'):
        return
    libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(threshold))  # type: ignore[union-attr]
    if not has_huge_pages():
        from pyg_sar.utils.log import say

        say(
            logging.getLogger(__name__),
            logging.INFO,
            'large tensors are not on huge pages, which costs up to a third of the time: import '
            'pyg_sar before torch_geometric, or set THP_MEM_ALLOC_ENABLE=1',
        )
