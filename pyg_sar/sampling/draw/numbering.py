"""Nodes found again, and numbers for new ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyg_sar.compiled.installed import loops

_Ints = npt.NDArray[np.int64]


def number(known: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers nodes that `keys` name: those in `known` by their places there, then new ones.

    Both are int64, at least 0; of equal ones that are known the first counts. Gives the new keys,
    ascending, and the number of each key: new ones follow those that are known.
    """
    if not keys.numel():
        return keys, keys
    is_small = known.numel() + keys.numel() < 2**31
    way = _by_sorting if not is_small or loops() is None else _by_hashing
    new, numbers = way(known.numpy(), keys.numpy())
    return torch.from_numpy(new), torch.from_numpy(numbers)


def _by_hashing(known: _Ints, keys: _Ints) -> tuple[_Ints, _Ints]:
    from pyg_sar.compiled import numbers

    place = np.empty(keys.size, dtype=np.int64)
    found = np.concatenate([known, np.empty_like(keys)])
    count = numbers.find(place, found, known.size, keys)
    new, index = _sorted(found[known.size : count])
    number = np.empty(new.size, dtype=np.int64)
    number[index] = np.arange(known.size, count)
    numbers.renumber(place, number, known.size)
    return new, place


def _by_sorting(known: _Ints, keys: _Ints) -> tuple[_Ints, _Ints]:
    """NumPy sorts whole numbers five times as fast as torch does.

    By its own sort a pair of key and place in one number three times as fast as by an index.
    """
    both = np.concatenate([known, keys])
    value, index = _sorted(both)
    is_first = np.empty(both.size, dtype=np.bool_)
    is_first[0] = True
    np.not_equal(value[1:], value[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    found = index[first]
    is_new = found >= known.size
    numbers = np.where(is_new, known.size - 1 + np.cumsum(is_new), found)
    place = np.empty(both.size, dtype=np.int64)
    place[index] = np.repeat(numbers, np.diff(first, append=both.size))
    return value[first[is_new]], place[known.size :]


def _sorted(keys: _Ints) -> tuple[_Ints, _Ints]:
    """Keys in order, and where they stood; equal ones in the order in which they stood."""
    if not keys.size:
        return keys, keys
    bits = int(keys.size).bit_length()
    if int(keys.max()).bit_length() + bits > 63:
        order = np.argsort(keys, kind='stable')
        return keys[order], order
    packed = keys << bits
    packed |= np.arange(keys.size)
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)
