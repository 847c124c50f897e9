"""The sum over the ranks, with gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.group import all_reduce_sum


def sum_over_ranks(local: Tensor) -> Tensor:
    """Sums a tensor of one shape over the ranks.

    | forward:  ``out = sum of the ranks' local``
    | backward: ``grad_local = sum of the ranks' grad_out``, as every rank's share of the loss
      depends on the sum

    Collective: one all-reduce in forward, one in backward.
    """
    out: Tensor = _SumOverRanks.apply(local)  # type: ignore[no-untyped-call]
    return out


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return all_reduce_sum(local.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return sum_over_ranks(grads[0])
