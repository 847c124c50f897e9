"""Finds numbers again by a hash table, block after block of them.

A table of all would not stay in the cache. So each block of close numbers has a part of the table,
at most half as large again as it needs: numbers that come in order stay in few parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.utils.jit import compiled, prefetch

_BLOCK_BITS = 6
_AHEAD = 12
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: the highest bits of products are spread evenly (Knuth, 6.4)."""


@compiled
def find(positions: Any, numbers: Any, num_known: Any, keys: Any) -> int:
    """Finds `keys` among the first `num_known` of `numbers`, and adds those that are not there.

    All are at least 0. It writes the position of every key, int64 ``[N]``, to `positions`, and new
    keys behind the known ones of `numbers`, int64 ``[num_known + N]``. Of equal known ones the
    first counts. Returns how many are in `numbers`.
    """
    count, top = np.int64(num_known), np.int64(0)
    for i in range(count):
        top = max(top, numbers[i])
    for key in keys:
        top = max(top, key)
    shift = np.int64(0)
    while top >> shift >= 1 << _BLOCK_BITS:
        shift += 1
    of_block = np.zeros(1 << _BLOCK_BITS, np.int64)
    for i in range(count):
        of_block[numbers[i] >> shift] += 1
    for key in keys:
        of_block[key >> shift] += 1
    start, right = np.zeros_like(of_block), np.zeros_like(of_block)
    size = np.int64(0)
    for block in range(of_block.size):
        bits = np.int64(1)
        while 2 << bits < 3 * of_block[block]:
            bits += 1
        start[block], right[block] = size, 64 - bits
        size += 1 << bits
    table = np.zeros(size, np.int32)  # positions, from 1 on; 0 is free
    for i in range(num_known + keys.size):
        key = numbers[i] if i < num_known else keys[i - num_known]
        if num_known <= i < num_known + keys.size - _AHEAD:
            later = keys[i - num_known + _AHEAD]
            block = later >> shift
            slot = np.int64((np.uint64(later) * _GOLDEN) >> np.uint64(right[block]))
            prefetch(table, np.uintp(start[block] + slot))
        block = key >> shift
        last = (1 << (64 - right[block])) - 1
        slot = np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(right[block]))
        at = table[start[block] + slot]
        while at != 0 and numbers[at - 1] != key:
            slot = (slot + 1) & last
            at = table[start[block] + slot]
        if at == 0:
            if i >= num_known:
                numbers[count] = key
                count += 1
            at = count if i >= num_known else i + 1
            table[start[block] + slot] = at
        if i >= num_known:
            positions[i - num_known] = at - 1
    return count


@compiled
def renumber(positions: Any, number: Any, first: Any) -> None:
    """``positions[k] = number[positions[k] - first]``, where it is at least `first`."""
    for k in range(positions.size):
        if positions[k] >= first:
            positions[k] = number[positions[k] - first]
