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

from pyg_sar.comm import all_reduce_sum, is_distributed
from pyg_sar.norm.convert import GlobalNorm
from pyg_sar.norm.running import make_equal, note_update
from pyg_sar.over_all_nodes.batch_norm import BatchNorm, moments, normalized
from pyg_sar.recompute import remember


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
        mean, var, count = moments(rows.detach())
        if count < 2:
            raise ValueError(
                f'expected more than 1 row on all ranks together when training (got {count})'
            )
        if self.training and self.track_running_stats:
            self._update_running(mean, var, count)
        out: Tensor = BatchNorm.apply(  # type: ignore[no-untyped-call]
            rows, self.weight, self.bias, mean, var, count, self.eps
        )
        remember(out, partial(normalized, eps=self.eps), rows, self.weight, self.bias, mean, var)
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
