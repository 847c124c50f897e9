"""Norms of groups of rows, whichever ranks own them: graphs of a batch, or node types.

Each is PyG's formula with means over the rows of all ranks, or over those of a batch.

``batch=None`` takes all nodes of all ranks as one graph. A batch vector holds, for every own node,
the number of its graph in the whole batch; a graph may be cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import norm

from pyg_sar.comm import is_distributed
from pyg_sar.norm.convert import GlobalNorm
from pyg_sar.norm.row_groups import Groups, groups_of
from pyg_sar.norm.running import make_equal, note_update


class _NormOfGraphs(GlobalNorm):
    """A norm of every graph's nodes by themselves.

    Shapes:
        - **x**: own rows ``[num_own, F]``; may be empty on some ranks
        - **batch**: graph of every own row, int64 ``[num_own]``, optional
        - **output**: ``[num_own, F]``

    Collective in training and evaluation alike, but for batches: an all-reduce for the sizes of the
    graphs (with a batch vector an all-gather before it), then one for every mean, in forward and in
    backward.

    Raises:
        ValueError: On every rank, if `batch` or `batch_size` does not fit on any.
    """

    weight: Any
    bias: Any

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Normalises own rows by the statistics of their graphs."""
        if not is_distributed():
            return super().forward(x, batch, batch_size)  # type: ignore[misc]
        is_of_batch = self._is_of_batch(batch)
        return self._normalize(x, groups_of(x, batch, batch_size, is_of_batch=is_of_batch))

    def _normalize(self, x: Tensor, graphs: Groups) -> Tensor:
        raise NotImplementedError

    def _scale_and_shift(self, x: Tensor) -> Tensor:
        if self.weight is not None and self.bias is not None:
            x = x * self.weight + self.bias
        return x


class GlobalGraphNorm(_NormOfGraphs, norm.GraphNorm):
    """``torch_geometric.nn.GraphNorm`` over the nodes of all ranks."""

    def _normalize(self, x: Tensor, graphs: Groups) -> Any:
        out = x - graphs.of_rows(graphs.mean(x) * self.mean_scale)
        std = (graphs.mean(out.pow(2)) + self.eps).sqrt()
        return self.weight * out / graphs.of_rows(std) + self.bias


class GlobalGraphSizeNorm(_NormOfGraphs, norm.GraphSizeNorm):
    """``torch_geometric.nn.GraphSizeNorm`` by the numbers of nodes on all ranks."""

    def _normalize(self, x: Tensor, graphs: Groups) -> Any:
        return x * graphs.of_rows(graphs.count.to(x.dtype).pow(-0.5).view(-1, 1))


class GlobalInstanceNorm(_NormOfGraphs, norm.InstanceNorm):
    """``torch_geometric.nn.InstanceNorm`` over the nodes of all ranks.

    Running statistics are equal on all ranks; in evaluation with them nothing is collective.

    Raises:
        ValueError: Also if all ranks together have fewer than two rows and no batch vector.
    """

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Normalises own rows by the statistics of their graphs, or by running ones."""
        if not is_distributed() or self.training or not self.track_running_stats:
            return super().forward(x, batch, batch_size)
        make_equal(self)
        std = (self.running_var + self.eps).sqrt()
        return self._scale_and_shift((x - self.running_mean) / std)

    def _normalize(self, x: Tensor, graphs: Groups) -> Any:
        has_none = graphs.is_of_batch and not x.size(0)
        if graphs.index is None and int(graphs.count) < 2 and not has_none:
            where = 'in the batch of a rank' if graphs.is_of_batch else 'on all ranks together'
            raise ValueError(f'expected more than 1 row {where} (got {int(graphs.count)})')
        mean = graphs.mean(x)
        x = x - graphs.of_rows(mean)
        var = graphs.mean(x * x)
        self._update_running(mean, var, graphs, has_none)
        return self._scale_and_shift(x / graphs.of_rows((var + self.eps).sqrt()))

    def _update_running(self, mean: Tensor, var: Tensor, graphs: Groups, has_none: bool) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        if graphs.is_of_batch:
            note_update(self, torch.tensor([not has_none]))
        else:
            make_equal(self)
        if has_none:
            return
        # PyG puts new tensors, with a history, in the place of the buffers; here they stay.
        count = graphs.count.view(-1, 1)
        unbiased = var.detach() * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean.detach().mean(0).to(self.running_mean), self.momentum)
        self.running_var.lerp_(unbiased.mean(0).to(self.running_var), self.momentum)


class GlobalLayerNorm(_NormOfGraphs, norm.LayerNorm):
    """``torch_geometric.nn.LayerNorm`` in mode 'graph' over the nodes of all ranks.

    Mode 'node' is PyG's, without collectives.
    """

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Normalises own rows by the statistics of their graphs, or each by its own."""
        if self.mode == 'graph':
            return super().forward(x, batch, batch_size)
        return norm.LayerNorm.forward(self, x, batch, batch_size)

    def _normalize(self, x: Tensor, graphs: Groups) -> Any:
        channels = tuple(range(1, x.dim()))
        x = x - graphs.of_rows(graphs.mean(x.mean(channels, keepdim=True)))
        var = graphs.mean((x * x).mean(channels, keepdim=True))
        # PyG adds eps to the deviation of one graph, and to the variance of several.
        is_one = graphs.index is None
        std = _sqrt(var) + self.eps if is_one else (var + self.eps).sqrt()
        return self._scale_and_shift(x / graphs.of_rows(std))


def _sqrt(var: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0, as ``torch.std`` has it."""
    is_positive = var > 0
    return torch.where(is_positive, var, 1).sqrt() * is_positive


class GlobalMeanSubtractionNorm(_NormOfGraphs, norm.MeanSubtractionNorm):
    """``torch_geometric.nn.MeanSubtractionNorm`` over the nodes of all ranks."""

    def forward(
        self, x: Tensor, batch: Tensor | None = None, dim_size: int | None = None
    ) -> Tensor:
        """Subtracts the mean of their graphs from own rows."""
        return super().forward(x, batch, dim_size)

    def _normalize(self, x: Tensor, graphs: Groups) -> Any:
        return graphs.centered(x)


class GlobalPairNorm(_NormOfGraphs, norm.PairNorm):
    """``torch_geometric.nn.PairNorm`` over the nodes of all ranks."""

    def _normalize(self, x: Tensor, graphs: Groups) -> Any:
        x = graphs.centered(x)
        if self.scale_individually:
            return self.scale * x / (self.eps + x.norm(2, -1, keepdim=True))
        square = graphs.mean(x.pow(2).sum(-1, keepdim=True))
        if graphs.index is None:
            square = square.mean()
        return self.scale * x / (self.eps + graphs.of_rows(square)).sqrt()


class GlobalHeteroBatchNorm(GlobalNorm, norm.HeteroBatchNorm):
    """``torch_geometric.nn.HeteroBatchNorm`` over the rows of all ranks.

    As in PyG, no gradient goes through the statistics, and ``num_batches_tracked`` counts only
    where ``momentum`` is None. Running statistics are equal on all ranks.

    Shapes:
        - **x**: own rows ``[num_own, F]``; may be empty
        - **type_vec**: type of every own row, int64 ``[num_own]``
        - **output**: ``[num_own, F]``

    Collective where it takes statistics of `x`, but for batches: one all-gather and three
    all-reduces in forward.

    Raises:
        ValueError: On every rank, if `type_vec` does not fit.
    """

    def forward(self, x: Tensor, type_vec: Tensor) -> Tensor:
        """Normalises own rows by the statistics of their type."""
        if not self.training and self.track_running_stats:
            make_equal(self)
            return super().forward(x, type_vec)
        if not is_distributed():
            return super().forward(x, type_vec)
        with torch.no_grad():
            types = groups_of(x, type_vec, self.num_types, is_of_batch=self._is_of_batch())
            mean = types.mean(x)
            var = types.mean((x - types.of_rows(mean)).square())
            if self.training and self.track_running_stats:
                self._update_running(mean, var, types)
        out: Tensor = (x - mean[type_vec]) / var.clamp(self.eps).sqrt()[type_vec]
        if self.affine:
            out = out * self.weight[type_vec] + self.bias[type_vec]
        return out

    def _update_running(self, mean: Tensor, var: Tensor, types: Groups) -> None:
        is_present = types.count > 0
        if types.is_of_batch:
            note_update(self, is_present)
        else:
            make_equal(self)
        if types.is_of_batch and not is_present.any():
            return
        momentum = self.momentum
        if momentum is None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked)
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            new = running.lerp(batch.to(running.dtype), momentum)
            running.copy_(torch.where(is_present.view(-1, 1), new, running))
