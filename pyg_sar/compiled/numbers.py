"""Finds numbers again by a hash table, block after block of them.

A table of all would not stay in the cache. So each block of close numbers has a part of the table,
half as large again as it needs at most: what comes in order stays in few parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyg_sar.compiled.jit import compiled, prefetch

_BLOCK_BITS = 6
_AHEAD = 12
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: the highest bits of products are spread evenly (Knuth, 6.4)."""


@compiled
def find(place: Any, found: Any, num_known: Any, keys: Any) -> int:
    """Places of `keys` in `found`, whose first numbers are known; those that are not are added.

    All are at least 0. `place`, of every key, int64 ``[N]``, is written; new keys are written
    behind those known in `found`, int64 ``[num_known + N]``. Of equal ones that are known the first
    counts. Gives how many are in `found`.
    """
    count, top = np.int64(num_known), np.int64(0)
    for i in range(count):
        top = max(top, found[i])
    for key in keys:
        top = max(top, key)
    shift = np.int64(0)
    while top >> shift >= 1 << _BLOCK_BITS:
        shift += 1
    of_block = np.zeros(1 << _BLOCK_BITS, np.int64)
    for i in range(count):
        of_block[found[i] >> shift] += 1
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
    table = np.zeros(size, np.int32)  # places, from 1 on; 0 is free
    for i in range(num_known + keys.size):
        key = found[i] if i < num_known else keys[i - num_known]
        if num_known <= i < num_known + keys.size - _AHEAD:
            later = keys[i - num_known + _AHEAD]
            block = later >> shift
            slot = np.int64((np.uint64(later) * _GOLDEN) >> np.uint64(right[block]))
            prefetch(table, np.uintp(start[block] + slot))
        block = key >> shift
        last = (1 << (64 - right[block])) - 1
        slot = np.int64((np.uint64(key) * _GOLDEN) >> np.uint64(right[block]))
        at = table[start[block] + slot]
        while at != 0 and found[at - 1] != key:
            slot = (slot + 1) & last
            at = table[start[block] + slot]
        if at == 0:
            if i >= num_known:
                found[count] = key
                count += 1
            at = count if i >= num_known else i + 1
            table[start[block] + slot] = at
        if i >= num_known:
            place[i - num_known] = at - 1
    return count


@compiled
def renumber(place: Any, number: Any, first: Any) -> None:
    """``place[k] = number[place[k] - first]``, where it is at least `first`."""
    for k in range(place.size):
        if place[k] >= first:
            place[k] = number[place[k] - first]
