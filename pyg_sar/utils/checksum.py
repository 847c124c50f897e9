"""A checksum of a tensor's content, beside its version.

What is computed once is kept as long as a tensor stays as it is. The version of a tensor counts
what torch writes into it, but not what is written through ``.data`` or NumPy.

The checksum is one pass over the memory. The tensor is read as 64-bit words in rows of m, and

| ``sum over the columns j < m of mix(j * ODD + sum over the rows i of word_ij)``  (mod 2^64)

changes with any change of one word, as ``mix`` is one-to-one. Any other change goes unseen by
chance only: rows of features are much shorter than m and no simple part of it, so rows or features
in another order do not meet in their old columns. Of a small tensor every word has its own column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_ROWS = 31.4159
"""Not a whole number: a tensor that is rolled by its half must not meet its old columns."""

_FEWEST = 1031
"""Columns, a prime: few words in fewer columns would meet in any order."""

_ODD = 0x1E3779B97F4A7C15
_LOW = (1 << 32) - 1


def checksum(tensor: Tensor) -> tuple[int, ...]:
    """Numbers that tell contents apart; the same for the same bits in the same order."""
    return tuple(_numbers(tensor).tolist())  # one wait for a device


def as_bytes(tensor: Tensor) -> Tensor:
    """All numbers as bytes in one row, without history; a view of a contiguous tensor."""
    return _flat(tensor).view(torch.uint8)


def _flat(tensor: Tensor) -> Tensor:
    """All numbers in one row; a contiguous tensor of one number may have any stride."""
    values = tensor.detach().contiguous().view(-1)
    return values.as_strided(values.shape, (1,))


def _numbers(tensor: Tensor) -> Tensor:
    values = _flat(tensor)
    size = values.element_size()
    if values.storage_offset() * size % 8:
        values = values.clone()
    num_words = values.numel() * size // 8
    words = values[: num_words * 8 // size].view(torch.int64)
    rest = values[num_words * 8 // size :].view(torch.uint8)
    width = max(int(num_words / _ROWS) | 1, _FEWEST)
    num_whole = num_words // width * width
    sums = words[:num_whole].view(-1, width).sum(0)
    sums[: num_words - num_whole] += words[num_whole:]
    # Far apart: with j alone [5, 9] would meet [10, 4].
    other = torch.arange(width, device=sums.device).mul_(_ODD)
    sums += other
    for _ in range(2):
        torch.bitwise_right_shift(sums, 32, out=other)
        sums ^= other.bitwise_and_(_LOW)
        sums *= _ODD
    return torch.cat([sums.sum().view(1), rest])


_LARGE = 2**15
"""So many numbers are as well read where they are as in a vector with others."""


def digest(tensors: Iterable[Tensor]) -> int:
    """A number of 64 bits that tells the contents of several tensors apart."""
    small: dict[Any, list[Tensor]] = {}
    numbers: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() >= _LARGE:
            numbers.setdefault(tensor.device, []).append(_numbers(tensor))
        else:
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach().reshape(-1))
    for (_, device), flat in small.items():
        numbers.setdefault(device, []).append(_numbers(torch.cat(flat)))
    text = repr([torch.cat(of_device).tolist() for of_device in numbers.values()])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), 'little')
