"""The sum and the maximum over the ranks, with gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.faults.guarded import communicates
from pyg_sar.comm.first_derivative_only import once_differentiable
from pyg_sar.comm.group import agree, all_reduce_sum


def sum_over_ranks(local: Tensor) -> Tensor:
    """Sums a tensor of one shape over the ranks.

    | forward:  ``out = sum of the ranks' local``
    | backward: ``grad_local = sum of the ranks' grad_out``, as every rank's share of the loss
      depends on the sum

    Collective: one all-reduce in forward, one in backward.
    """
    out: Tensor = _SumOverRanks.apply(local)  # type: ignore[no-untyped-call]
    return out


@communicates
class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return all_reduce_sum(local.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return sum_over_ranks(grads[0])


def max_over_ranks(values: Tensor) -> Tensor:
    """The largest entry that any rank has, as a scalar; -inf of no entries.

    | backward: the sum of the ranks' gradients, in even shares to the entries that are largest

    Collective: one small all-gather in forward, two all-reduces in backward.
    """
    out: Tensor = _MaxOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return out


@communicates
class _MaxOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        own = values.max().item() if values.numel() else float('-inf')
        largest = values.new_tensor(max(agree(own)))
        ctx.save_for_backward(values, largest)
        return largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        values, largest = ctx.saved_tensors
        is_largest = values == largest
        sums = torch.stack([grads[0], is_largest.sum().to(grads[0].dtype)])
        grad, count = all_reduce_sum(sums)
        share: Tensor = is_largest * (grad / count)
        return share
