"""PyG's norms over the nodes of a graph, for graphs whose nodes lie on several ranks.

Each is PyG's formula with means over the rows of all ranks. ``batch=None`` takes all nodes of all
ranks for one graph; a batch vector holds, for every own node, the number of its graph in the whole
batch, and a graph may be cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import norm

from pyg_sar.comm import is_distributed
from pyg_sar.norm.base import GlobalNorm
from pyg_sar.norm.groups import Groups, groups_of


class _NormOfGraphs(GlobalNorm):
    """A norm of every graph's nodes by themselves.

    Shapes:
        - **x**: own rows ``[num_own, F]``; may be empty on some ranks
        - **batch**: graph of every own row, int64 ``[num_own]``, optional
        - **output**: ``[num_own, F]``

    Collective in training and evaluation alike: an all-reduce for the sizes of the graphs (with a
    batch vector an all-gather before it), then one for every mean, in forward and in backward.

    Raises:
        ValueError: On every rank, if `batch` or `batch_size` does not fit on any.
    """

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Normalises own rows by the statistics of their graphs."""
        out: Tensor
        if is_distributed():
            out = self.normalize(x, groups_of(x, batch, batch_size))
        else:
            out = super().forward(x, batch, batch_size)  # type: ignore[misc]
        return out

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Normalises own rows by the statistics of these graphs."""
        raise NotImplementedError


class GlobalGraphNorm(_NormOfGraphs, norm.GraphNorm):  # type: ignore[misc]
    """``torch_geometric.nn.GraphNorm`` over the nodes of all ranks."""

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Shifts by a learned share of the mean, then divides by the deviation from there."""
        out = x - graphs.of_rows(graphs.mean(x) * self.mean_scale)
        std = (graphs.mean(out.pow(2)) + self.eps).sqrt()
        return self.weight * out / graphs.of_rows(std) + self.bias


class GlobalGraphSizeNorm(_NormOfGraphs, norm.GraphSizeNorm):  # type: ignore[misc]
    """``torch_geometric.nn.GraphSizeNorm`` by the numbers of nodes on all ranks."""

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Divides by the square root of the number of nodes."""
        return x * graphs.of_rows(graphs.count.to(x.dtype).pow(-0.5).view(-1, 1))


class GlobalInstanceNorm(_NormOfGraphs, norm.InstanceNorm):  # type: ignore[misc]
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
        std = (self.running_var + self.eps).sqrt()
        return self._scale_and_shift((x - self.running_mean) / std)

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Subtracts the mean, divides by the deviation and updates running statistics."""
        if graphs.index is None and int(graphs.count) < 2:
            raise ValueError(
                f'expected more than 1 row on all ranks together (got {int(graphs.count)})'
            )
        mean = graphs.mean(x)
        x = x - graphs.of_rows(mean)
        var = graphs.mean(x * x)
        # PyG puts new tensors, with a history, in the place of the buffers; here they stay.
        if self.running_mean is not None:
            self.running_mean.lerp_(mean.detach().mean(0).to(self.running_mean), self.momentum)
        if self.running_var is not None:
            count = graphs.count.view(-1, 1)
            unbiased = var.detach() * count / (count - 1).clamp(min=1)
            self.running_var.lerp_(unbiased.mean(0).to(self.running_var), self.momentum)
        return self._scale_and_shift(x / graphs.of_rows((var + self.eps).sqrt()))

    def _scale_and_shift(self, x: Tensor) -> Tensor:
        if self.weight is not None and self.bias is not None:
            x = x * self.weight + self.bias
        return x


class GlobalLayerNorm(_NormOfGraphs, norm.LayerNorm):  # type: ignore[misc]
    """``torch_geometric.nn.LayerNorm`` in mode 'graph' over the nodes of all ranks.

    Mode 'node' is PyG's, without collectives.
    """

    def forward(
        self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Normalises own rows by the statistics of their graphs, or each by its own."""
        if self.mode == 'graph':
            return super().forward(x, batch, batch_size)
        out: Tensor = norm.LayerNorm.forward(self, x, batch, batch_size)
        return out

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Subtracts the mean of all channels and divides by their deviation."""
        channels = tuple(range(1, x.dim()))
        x = x - graphs.of_rows(graphs.mean(x.mean(channels, keepdim=True)))
        var = graphs.mean((x * x).mean(channels, keepdim=True))
        # PyG adds eps to the deviation of one graph, and to the variance of several.
        is_one = graphs.index is None
        std = _sqrt(var) + self.eps if is_one else (var + self.eps).sqrt()
        out = x / graphs.of_rows(std)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight + self.bias
        return out


def _sqrt(var: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0, as ``torch.std`` has it."""
    is_positive = var > 0
    return torch.where(is_positive, var, 1).sqrt() * is_positive


class GlobalMeanSubtractionNorm(_NormOfGraphs, norm.MeanSubtractionNorm):  # type: ignore[misc]
    """``torch_geometric.nn.MeanSubtractionNorm`` over the nodes of all ranks."""

    def forward(
        self, x: Tensor, batch: Tensor | None = None, dim_size: int | None = None
    ) -> Tensor:
        """Subtracts the mean of their graphs from own rows."""
        return super().forward(x, batch, dim_size)

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Subtracts the mean."""
        return x - graphs.of_rows(graphs.mean(x))


class GlobalPairNorm(_NormOfGraphs, norm.PairNorm):  # type: ignore[misc]
    """``torch_geometric.nn.PairNorm`` over the nodes of all ranks."""

    def normalize(self, x: Tensor, graphs: Groups) -> Any:
        """Subtracts the mean and scales every row by its length or by the graph's mean length."""
        x = x - graphs.of_rows(graphs.mean(x))
        if self.scale_individually:
            return self.scale * x / (self.eps + x.norm(2, -1, keepdim=True))
        square = graphs.mean(x.pow(2).sum(-1, keepdim=True))
        if graphs.index is None:
            square = square.mean()
        return self.scale * x / (self.eps + graphs.of_rows(square)).sqrt()
