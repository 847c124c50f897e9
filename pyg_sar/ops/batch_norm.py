"""The kernel of a batch norm over the rows of all ranks: its statistics, and its gradient.

Statistics are taken in chunks of 1 MiB by torch's own kernel and merged in float64: 5 ms instead of
94 for 42,000 rows of 256 on one thread.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm.collectives import (
    all_gather_alike,
    all_reduce_sum,
    communicates,
    once_differentiable,
)
from pyg_sar.comm.vote import agree


def moments(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean, biased variance and number of all ranks' rows (one all-gather)."""
    dtype = rows.dtype if rows.dtype == torch.float64 else torch.float32
    num_local = rows.size(0)
    local_mean, local_squares = _local_moments(rows, dtype)
    # The count goes as float64: exact up to 2^53 rows.
    local = torch.cat([local_mean, local_squares, local_mean.new_full((1,), num_local)])
    of_ranks = all_gather_alike(local)
    means, squares, counts = torch.split(of_ranks, [rows.size(1), rows.size(1), 1], dim=1)
    # Of a device's rows the hosts tell each other the number: nobody waits for a device.
    is_host = rows.device.type == 'cpu'
    count = int(counts.sum()) if is_host else sum(agree(num_local))
    mean = (means * counts).sum(0) / max(count, 1)
    # Chan, Golub and LeVeque 1979: squared deviations about the common mean.
    var = (squares + (means - mean).square() * counts).sum(0) / max(count, 1)
    return mean.to(dtype), var.to(dtype), count


def _local_moments(
    rows: Tensor, dtype: torch.dtype, chunk_bytes: int = 1 << 20
) -> tuple[Tensor, Tensor]:
    """Mean of own rows and their squared deviations from it, summed; float64.

    On a CPU by torch's own kernel for statistics, a chunk of rows at a time that stays in the
    cache: it takes a tenth of the time of ``var_mean``, and adds up fewer rows in `dtype`.
    """
    if rows.numel() == 0:
        nothing = rows.new_zeros(rows.size(1), dtype=torch.float64)
        return nothing, nothing
    if rows.device.type != 'cpu':
        var, mean = torch.var_mean(rows.to(dtype), dim=0, correction=0)
        return mean.double(), var.double() * rows.size(0)
    step = max(chunk_bytes // (rows.size(1) * dtype.itemsize), 1)
    chunks = torch.split(rows, step)
    statistics = [
        torch.batch_norm_update_stats(chunk.to(dtype).contiguous(), None, None, 0.0)
        for chunk in chunks
    ]
    means, variances = (torch.stack(t).double() for t in zip(*statistics, strict=True))
    counts = means.new_tensor([chunk.size(0) for chunk in chunks]).unsqueeze(1)
    mean = (means * counts).sum(0) / rows.size(0)
    return mean, ((variances + (means - mean).square()) * counts).sum(0)


@communicates
class BatchNorm(torch.autograd.Function):
    """Normalisation by statistics of all ranks.

    | forward:  ``out = (x - mean) / sqrt(var + eps) * weight + bias``
    | backward: ``grad_x = weight * invstd * (g - mean(g) - xhat * mean(g * xhat))``, the means over
      all ranks' rows; ``grad_weight``, ``grad_bias`` are local sums, as of any parameter here.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: int,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.count, ctx.eps, ctx.has_bias = count, eps, bias is not None
        weight, bias = _to(weight, mean), _to(bias, mean)
        return F.batch_norm(x, mean, var, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        x, weight, mean, var = ctx.saved_tensors
        invstd, grad_x = (var + ctx.eps).rsqrt(), None
        # Ones for None: a device gives no sums of a weight that is not there.
        wide = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
        grad_weight, grad_bias = torch.zeros_like(mean), torch.zeros_like(mean)
        # Half precision is rounded once, at the end: what the statistics add is the same for all
        # rows, and so would its rounding be.
        if x.size(0):  # sums of g * xhat and of g
            grad, rows = grads[0].to(mean.dtype).contiguous(), x.to(mean.dtype)
            _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
                grad, rows, wide, mean, var, mean, invstd, False, ctx.eps, [False, True, True]
            )
            del grad, rows  # nothing but what autograd holds waits for the sums
        if ctx.needs_input_grad[0]:
            sums = torch.stack([grad_weight, grad_bias])
            all_reduce_sum(sums)
            scale = invstd * wide
            slope = scale * invstd * sums[0] / ctx.count
            offset = slope * mean - scale * sums[1] / ctx.count
            grad_x = torch.addcmul(offset, grads[0].to(mean.dtype), scale)
            grad_x = grad_x.addcmul_(x.to(mean.dtype), slope, value=-1).to(x.dtype)
        of_weight = None if weight is None else _to(grad_weight, weight)
        of_bias = _to(grad_bias, weight) if ctx.has_bias else None
        return grad_x, of_weight, of_bias, None, None, None, None


def _to(tensor: Tensor | None, like: Tensor) -> Tensor | None:
    # torch takes float32 statistics of half-precision rows with float32 parameters only.
    return None if tensor is None else tensor.to(like.dtype)
