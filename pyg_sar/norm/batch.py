"""Batch normalisation over all nodes of the graph, whichever rank owns them.

torch's SyncBatchNorm does the same for CUDA only. Statistics are taken in chunks of 1 MiB by
torch's own kernel and merged in float64: 5 ms instead of 94 for 42,000 rows of 256 on one thread.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import norm

from pyg_sar.comm import agree, all_reduce_sum, communicates, is_distributed, once_differentiable
from pyg_sar.norm.convert import GlobalNorm
from pyg_sar.norm.running import make_equal, note_update
from pyg_sar.recompute import remember

_CHUNK_BYTES = 1 << 20


class GlobalBatchNorm(GlobalNorm, torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` with the mean and variance of all ranks' rows in training.

    Same parameters, buffers and state_dict; running statistics are equal on all ranks. In
    evaluation, or with one process, it is BatchNorm1d. Of batches it takes the statistics of this
    rank's rows (:class:`GlobalNorm`), unless it was a ``torch.nn.SyncBatchNorm``.

    Shapes:
        - **input**: own rows ``[num_own, C]`` or ``[num_own, C, L]``; may be empty on some ranks
        - **output**: as the input

    Collective in training, but for batches: two all-reduces of C numbers in forward, one of 2 C in
    backward.

    Raises:
        ValueError: If all ranks together have fewer than two rows in training; of a batch, if this
            rank has one.
    """

    @classmethod
    def convert(cls, module: torch.nn.Module) -> GlobalBatchNorm:
        """See :meth:`GlobalNorm.convert`."""
        if isinstance(module, torch.nn.SyncBatchNorm):
            module.is_synced = True  # type: ignore[assignment]
        return super().convert(module)

    def forward(self, input: Tensor) -> Tensor:
        """Normalises own rows by the statistics of all ranks' rows, or of a batch."""
        uses_batch = self.training or self.running_mean is None
        if not uses_batch:
            make_equal(self)
            return self.by_running_statistics(input)
        if not is_distributed():
            return super().forward(input)
        self._check_input_dim(input)
        if self._is_of_batch():
            return self._of_own_rows(input)
        rows = input if input.dim() == 2 else input.transpose(1, 2).reshape(-1, input.size(1))
        mean, var, count = _moments(rows.detach())
        if count < 2:
            raise ValueError(
                f'expected more than 1 row on all ranks together when training (got {count})'
            )
        if self.training and self.track_running_stats:
            self._update_running(mean, var, count)
        out: Tensor = _BatchNorm.apply(  # type: ignore[no-untyped-call]
            rows, self.weight, self.bias, mean, var, count, self.eps
        )
        remember(out, partial(_normalized, eps=self.eps), rows, self.weight, self.bias, mean, var)
        if input.dim() == 3:
            out = out.view(input.size(0), input.size(2), input.size(1)).transpose(1, 2)
        return out

    def by_running_statistics(self, input: Tensor) -> Tensor:
        """Normalises own rows by the running statistics and leaves these as they are."""
        self._check_input_dim(input)
        if not input.size(0):
            return self._of_no_rows(input)
        mean, var = self.running_mean, self.running_var
        if self.training:  # they may be updated before backward, which needs these
            mean, var = (None if b is None else b.clone() for b in (mean, var))
        return F.batch_norm(input, mean, var, self.weight, self.bias, eps=self.eps)

    def _of_own_rows(self, input: Tensor) -> Tensor:
        """Normalises the rows of a batch by their own statistics, as BatchNorm1d does."""
        is_tracked = self.training and self.track_running_stats
        if is_tracked:
            note_update(self, torch.tensor([input.numel() > 0]))
        if not input.numel():
            return self._of_no_rows(input)
        if input.numel() == input.size(1):
            raise ValueError(
                'expected more than 1 row in the batch of a rank when training (got 1): use '
                'torch_geometric.nn.BatchNorm(allow_single_element=True), larger batches, or '
                'torch.nn.SyncBatchNorm'
            )
        if not is_tracked:
            return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)
        assert self.running_mean is not None
        assert self.running_var is not None
        # Autograd keeps what it is given, and what it keeps must not change until backward.
        mean, var = self.running_mean.clone(), self.running_var.clone()
        momentum = self._next_momentum()
        out = F.batch_norm(input, mean, var, self.weight, self.bias, True, momentum, self.eps)
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)
        return out

    def _of_no_rows(self, input: Tensor) -> Tensor:
        # The backward of torch's own divides by the number of rows, in integers (torch 2.13).
        shape = (-1, *[1] * (input.dim() - 2))
        out = input if self.weight is None else input * self.weight.view(shape)
        return out if self.bias is None else out + self.bias.view(shape)

    def _next_momentum(self) -> float:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _update_running(self, mean: Tensor, var: Tensor, count: int) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        make_equal(self)
        momentum = self._next_momentum()
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = var * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class GlobalPyGBatchNorm(GlobalNorm, norm.BatchNorm):
    """``torch_geometric.nn.BatchNorm`` around a :class:`GlobalBatchNorm`.

    With ``allow_single_element`` the running statistics are used where all ranks together, or the
    batch of a rank, have at most one row.

    Collective in training: as GlobalBatchNorm, and an all-reduce with ``allow_single_element``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.module: GlobalBatchNorm = GlobalBatchNorm.convert(self.module)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises own rows by the statistics of all ranks' rows, or of a batch."""
        if self.training and self.allow_single_element:
            count = torch.tensor([x.size(0)], device=x.device)
            if not self.module._is_of_batch():
                make_equal(self.module)
                all_reduce_sum(count)
            if int(count) <= 1:
                return self.module.by_running_statistics(x)
        return self.module(x)

    @property
    def running_mean(self) -> Tensor | None:
        """That of the batch norm inside."""
        return self.module.running_mean


class GlobalDiffGroupNorm(GlobalNorm, norm.DiffGroupNorm):
    """``torch_geometric.nn.DiffGroupNorm`` around a :class:`GlobalBatchNorm`, with its collectives.

    The clusters are learned by a linear layer, row by row.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.norm: GlobalBatchNorm = GlobalBatchNorm.convert(self.norm)

    @property
    def running_mean(self) -> Tensor | None:
        """That of the batch norm inside."""
        return self.norm.running_mean


def _moments(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean, biased variance and number of all ranks' rows (two all-reduces)."""
    dtype = rows.dtype if rows.dtype == torch.float64 else torch.float32
    num_local = rows.size(0)
    local_mean, local_squares = _local_moments(rows, dtype)
    # The count goes as float64: exact up to 2^53 rows.
    sums = torch.cat([local_mean * num_local, local_mean.new_full((1,), num_local)])
    all_reduce_sum(sums)
    # Of a device's rows the hosts tell each other the number: nobody waits for a device.
    is_host = rows.device.type == 'cpu'
    count = int(sums[-1]) if is_host else sum(agree(num_local))
    mean = sums[:-1] / max(count, 1)
    # Chan, Golub and LeVeque 1979: squared deviations about the common mean.
    squares = local_squares + (local_mean - mean).square() * num_local
    var = all_reduce_sum(squares) / max(count, 1)
    return mean.to(dtype), var.to(dtype), count


def _local_moments(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
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
    step = max(_CHUNK_BYTES // (rows.size(1) * dtype.itemsize), 1)
    chunks = torch.split(rows, step)
    found = [
        torch.batch_norm_update_stats(chunk.to(dtype).contiguous(), None, None, 0.0)
        for chunk in chunks
    ]
    means, variances = (torch.stack(each).double() for each in zip(*found, strict=True))
    counts = means.new_tensor([chunk.size(0) for chunk in chunks]).unsqueeze(1)
    mean = (means * counts).sum(0) / rows.size(0)
    return mean, ((variances + (means - mean).square()) * counts).sum(0)


@communicates
class _BatchNorm(torch.autograd.Function):
    """Normalisation by statistics of all ranks.

    | forward:  ``out = (x - mean) / sqrt(var + eps) * weight + bias``
    | backward: ``grad_x = weight * invstd * (g - mean(g) - xhat * mean(g * xhat))``, the means over
      all ranks' rows; ``grad_weight``, ``grad_bias`` are local sums, as of any parameter here.
    """

    @staticmethod
    def forward(
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
        return _normalized(x, weight, bias, mean, var, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        invstd = (var + ctx.eps).rsqrt()
        # Ones for None: a device gives no sums of a weight that is not there.
        wide = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
        # With fixed statistics: weight * invstd * g, sum of g * xhat, sum of g.
        if x.size(0):
            # Half precision is rounded once, at the end: what the statistics add is the same for
            # all rows, and so would its rounding be.
            grad, rows = grads[0].to(mean.dtype).contiguous(), x.to(mean.dtype)
            grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
                grad, rows, wide, mean, var, mean, invstd, False, ctx.eps, [True] * 3
            )
        else:
            rows, grad_x = x, torch.zeros_like(x)  # not x itself: it is changed in place below
            grad_weight, grad_bias = torch.zeros_like(mean), torch.zeros_like(mean)
        if ctx.needs_input_grad[0]:
            sums = torch.stack([grad_weight, grad_bias])
            all_reduce_sum(sums)
            scale = invstd * wide
            slope = scale * invstd * sums[0] / ctx.count
            offset = scale * sums[1] / ctx.count - slope * mean
            grad_x = grad_x.addcmul_(rows, slope.to(rows.dtype), value=-1)
            grad_x = grad_x.sub_(offset.to(rows.dtype)).to(x.dtype)
        return (
            grad_x if ctx.needs_input_grad[0] else None,
            _to(grad_weight, weight) if weight is not None else None,
            _to(grad_bias, weight) if ctx.has_bias else None,
            None,
            None,
            None,
            None,
        )


def _normalized(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *, eps: float
) -> Tensor:
    return F.batch_norm(x, mean, var, _to(weight, mean), _to(bias, mean), eps=eps)


def _to(tensor: Tensor | None, like: Tensor) -> Tensor | None:
    # torch takes float32 statistics of half-precision rows with float32 parameters only.
    return None if tensor is None else tensor.to(like.dtype)
