"""PyG's batch norm per node type, with the statistics of all ranks' rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import norm

from pyg_sar.comm import is_distributed
from pyg_sar.norm.base import GlobalNorm
from pyg_sar.norm.groups import groups_of


class GlobalHeteroBatchNorm(GlobalNorm, norm.HeteroBatchNorm):  # type: ignore[misc]
    """``torch_geometric.nn.HeteroBatchNorm`` over the rows of all ranks.

    As in PyG, no gradient goes through the statistics, and ``num_batches_tracked`` counts only
    where ``momentum`` is None. Running statistics are equal on all ranks.

    Shapes:
        - **x**: own rows ``[num_own, F]``; may be empty
        - **type_vec**: type of every own row, int64 ``[num_own]``
        - **output**: ``[num_own, F]``

    Collective where it takes statistics of `x`: one all-gather and three all-reduces in forward.

    Raises:
        ValueError: On every rank, if `type_vec` does not fit.
    """

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """Normalises own rows by the statistics of their type."""
        if not is_distributed() or (not self.training and self.track_running_stats):
            plain: Tensor = super().forward(x, type_vec)
            return plain
        with torch.no_grad():
            types = groups_of(x, type_vec, self.num_types)
            mean = types.mean(x)
            var = types.mean((x - types.of_rows(mean)).square())
            if self.training and self.track_running_stats:
                self._update_running(mean, var, types.count > 0)
        out: Tensor = (x - mean[type_vec]) / var.clamp(self.eps).sqrt()[type_vec]
        if self.affine:
            out = out * self.weight[type_vec] + self.bias[type_vec]
        return out

    def _update_running(self, mean: Tensor, var: Tensor, is_present: Tensor) -> None:
        momentum = self.momentum
        if momentum is None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked)
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            batch = batch.to(running.dtype)
            running.copy_(
                torch.where(is_present.view(-1, 1), running.lerp(batch, momentum), running)
            )
