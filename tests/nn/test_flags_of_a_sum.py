"""Flags and digits that travel with the sum of the gradients are read exactly."""

from __future__ import annotations

import pytest
import torch

from pyg_sar.nn import buckets

NUMBER = 0x9E3779B97F4A7C15


@pytest.mark.parametrize('size', [2, 3, 7, 64, 1000, 4095])
@pytest.mark.parametrize(
    'dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64]
)
def test_what_ranks_tell(dtype: torch.dtype, size: int) -> None:
    """Any number of ranks has set a flag; one rank's number is another one in its last bit."""
    for odd in (NUMBER, NUMBER + 1):
        flags = [[rank < count for count in (0, 1, size)] for rank in range(size)]
        told = [
            buckets._Message(own, odd if rank == size - 1 else NUMBER, size, dtype)
            for rank, own in enumerate(flags)
        ]
        numbers = torch.tensor([each.numbers for each in told], dtype=dtype) / size
        total = torch.zeros(3, dtype=dtype)
        for own in numbers:  # in the precision of the dtype
            total += own
        for each in (told[0], told[-1]):
            counts = each.read(total.real.tolist())
            assert [count > 0 for count in counts] == [False, True, True]
            assert counts == [0, 1, size] or not each._base
            assert each.is_alike == (odd == NUMBER or not each._base)
    has_digits = torch.finfo(dtype).eps * size**2 < 0.2
    assert bool(told[0]._base) >= has_digits
