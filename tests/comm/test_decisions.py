"""Decisions of as many ranks as no test can start."""

from __future__ import annotations

import pytest
from torch import Tensor

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import chosen
from pyg_sar.comm.vote import least_of_ranks


class _Ranks(Comm):
    """``counts[v]`` ranks have the value v; the sum is that of the numbers that they send."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.size, self._counts, self._sent = sum(counts), counts, [0, 0, 0]
        for value in range(3):
            self.decide(value)

    def decide(self, value: int) -> int:
        self._value = value
        with chosen.set(self):
            return least_of_ranks(value, self.size)

    def sum_alike(
        self, tag: str, *, number: int = 0, state: str = '', summed: Tensor | None = None
    ) -> int | None:
        assert 0 <= number < 2**24
        self._sent[self._value] = number
        return sum(count * sent for count, sent in zip(self._counts, self._sent, strict=True))


@pytest.mark.parametrize('size', [2, 4095, 4096, 8192, 65535])
def test_the_least_of_many_ranks(size: int) -> None:
    for some in (1, size // 2, size - 1, size):
        others = size - some
        for counts in ([some, others, 0], [some, 0, others], [0, some, others]):
            present = [value for value, count in enumerate(counts) if count]
            ranks = _Ranks(counts)
            assert [ranks.decide(value) for value in present] == [present[0]] * len(present)
