"""The softmax over in-edges, for the edges of a chunk.

A chunk may be computed before the softmax is finished, in forward, and after, in backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import torch_apply
from pyg_sar.ops.program import SoftmaxFn
from pyg_sar.ops.reductions import SoftmaxStats
from pyg_sar.shard.index_rows import rows_at


@dataclass(frozen=True, eq=False)
class FinishedSoftmax:
    """A softmax of which all edges are known."""

    stats: SoftmaxStats
    row_sum: Tensor  # r_i = sum over in-edges of alpha * d_alpha

    def of(self, rows: slice) -> SoftmaxFn:
        """That of edges into some destinations, which their indices count from the first of."""
        return lambda logits, dst: _Softmax.apply(logits, dst, self.stats, self.row_sum, rows)


class _Softmax(torch.autograd.Function):
    """A chunk's share of a softmax whose statistics are known.

    | forward:  ``alpha = exp(l - max_i) / sum_i``
    | backward: ``d_l = alpha * (d_alpha - r_i)``
    """

    apply = torch_apply

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, dst: Tensor, stats: SoftmaxStats, row_sum: Tensor, rows: slice
    ) -> Tensor:
        alpha = stats.alpha(logits, dst, rows)
        ctx.save_for_backward(alpha, dst, row_sum[rows])
        return alpha

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        alpha, dst, row_sum = ctx.saved_tensors
        return alpha * (grads[0] - rows_at(row_sum, dst)), None, None, None, None


class SoftmaxSoFar:
    """A softmax that other edges may join, of messages that are linear in it.

    It gives ``w = exp(l - m)`` with the maxima m of the edges so far. Once all edges are in,
    ``alpha = c * w``, and so the gradients of what was computed from w count c times.
    """

    def __init__(self, stats: SoftmaxStats) -> None:
        self._stats = stats

    def __call__(self, logits: Tensor, dst: Tensor) -> Tensor:
        """The weights of a chunk, with their history."""
        out: Tensor = _WeightsSoFar.apply(logits, dst, self)
        return out

    def step(self, logits: Tensor, dst: Tensor) -> Tensor:
        """``exp(l - m)`` of a chunk."""
        weights = self._stats.step(logits, dst)
        self._max = self._stats.max_at(dst, self._stats.rows)
        return weights

    def finish(self, softmax: FinishedSoftmax, dst: Tensor, rows: slice) -> None:
        """Takes in what all edges have made of it."""
        stats = softmax.stats
        assert stats.sum is not None
        self.factor = (self._max - stats.max_at(dst, rows)).exp() / rows_at(stats.sum[rows], dst)
        self.row_sum = rows_at(softmax.row_sum[rows], dst)

    def scaled(self, grad: Tensor) -> Tensor:
        """A gradient of the chunk, times c."""
        scaled = by_weight(grad.contiguous(), self.factor) * as_factor(self.factor, grad)
        return scaled.view_as(grad)


class _WeightsSoFar(torch.autograd.Function):
    """The weights of :class:`SoftmaxSoFar`.

    | forward:  ``w = exp(l - m)``
    | backward: ``d_l = w * (d_w - c * r_i)``, of a d_w that is scaled by c
    """

    apply = torch_apply

    @staticmethod
    def forward(ctx: Any, logits: Tensor, dst: Tensor, softmax: SoftmaxSoFar) -> Tensor:
        weights = softmax.step(logits, dst)
        ctx.save_for_backward(weights)
        ctx.softmax = softmax
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weights,), softmax = ctx.saved_tensors, ctx.softmax
        return weights * (grads[0] - softmax.factor * softmax.row_sum), None, None


def by_weight(values: Tensor, weights: Tensor) -> Tensor:
    """``[n, ...]`` as ``[n, num_weights, k]``: together what the softmax weights alike."""
    num_weights = prod(weights.shape[1:])
    return values.view(values.size(0), num_weights, prod(values.shape[1:]) // num_weights)


def as_factor(weights: Tensor, values: Tensor) -> Tensor:
    """``[n, ...]`` of the softmax, to multiply what :func:`by_weight` gives for `values`."""
    return weights.reshape(weights.size(0), prod(weights.shape[1:]), 1).to(values.dtype)
