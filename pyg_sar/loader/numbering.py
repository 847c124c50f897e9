"""Numbers for nodes: those they have, and new ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyg_sar.utils.installed import loops

_Ints = npt.NDArray[np.int64]


def number(old: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers keys: those in `old` by their index there, new ones after them.

    Both are int64, at least 0; of equal old keys the first counts. Gives the new keys, ascending,
    and the number of each key.
    """
    if not keys.numel():
        return keys, keys
    is_small = old.numel() + keys.numel() < 2**31
    way = _by_sorting if not is_small or loops() is None else _by_hashing
    new, numbers = way(old.numpy(), keys.numpy())
    return torch.from_numpy(new), torch.from_numpy(numbers)


def _by_hashing(old: _Ints, keys: _Ints) -> tuple[_Ints, _Ints]:
    from pyg_sar.utils import numba_loops

    of_keys = np.empty(keys.size, dtype=np.int64)
    distinct = np.concatenate([old, np.empty_like(keys)])
    count = numba_loops.find(of_keys, distinct, old.size, keys)
    new, index = _sorted(distinct[old.size : count])
    number = np.empty(new.size, dtype=np.int64)
    number[index] = np.arange(old.size, count)
    numba_loops.renumber(of_keys, number, old.size)
    return new, of_keys


def _by_sorting(old: _Ints, keys: _Ints) -> tuple[_Ints, _Ints]:
    """NumPy sorts whole numbers five times as fast as torch does.

    By its own sort a pair of key and index in one number three times as fast as by an index.
    """
    both = np.concatenate([old, keys])
    value, index = _sorted(both)
    is_first = np.empty(both.size, dtype=np.bool_)
    is_first[0] = True
    np.not_equal(value[1:], value[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    origin = index[first]
    is_new = origin >= old.size
    numbers = np.where(is_new, old.size - 1 + np.cumsum(is_new), origin)
    of_both = np.empty(both.size, dtype=np.int64)
    of_both[index] = np.repeat(numbers, np.diff(first, append=both.size))
    return value[first[is_new]], of_both[old.size :]


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
