"""Models and convs that count over all nodes or edges, which here are those of all ranks.

Label propagation takes the number of classes from the labels, correct and smooth the mean error
over all training nodes, RECT mean features per class, SuperGAT a mean loss over all edges. The
propagation itself is a conv like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SuperGATConv
from torch_geometric.nn.models import RECT_L, CorrectAndSmooth, LabelPropagation
from torch_geometric.utils import one_hot, scatter

from pyg_sar.comm import agree, all_reduce_sum, sum_over_ranks
from pyg_sar.shard.edge_index import ShardEdgeIndex


class GlobalLabelPropagation(LabelPropagation):
    """``LabelPropagation`` with as many classes as the labels of all ranks have.

    Collective with class labels in `y`: one small all-gather beside the propagations.
    """

    def forward(
        self,
        y: Tensor,
        edge_index: Any,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Propagates the rows of own nodes; arguments as in PyG, `mask` over own nodes.

        Raises:
            ValueError: On all ranks, if a class label is negative on any.
        """
        if isinstance(edge_index, ShardEdgeIndex) and _are_classes(y):
            y = one_hot(y.view(-1), num_classes=num_classes(y))
        return super().forward(y, edge_index, mask, edge_weight, post_step)


class GlobalCorrectAndSmooth(CorrectAndSmooth):
    """``CorrectAndSmooth`` whose autoscale takes the mean error of the training nodes of all ranks.

    Collective: with ``autoscale`` one all-reduce of two numbers beside the propagations.
    """

    def correct(
        self,
        y_soft: Tensor,
        y_true: Tensor,
        mask: Tensor,
        edge_index: Any,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Corrects the predictions of own nodes; `y_true` and `mask` are those of own nodes."""
        if not (self.autoscale and isinstance(edge_index, ShardEdgeIndex)):
            return super().correct(y_soft, y_true, mask, edge_index, edge_weight)
        if _are_classes(y_true):
            y_true = one_hot(y_true.view(-1), num_classes=y_soft.size(-1), dtype=y_soft.dtype)
        error = torch.zeros_like(y_soft)
        error[mask] = y_true - y_soft[mask]
        smoothed = self.prop1(
            error, edge_index, edge_weight=edge_weight, post_step=lambda x: x.clamp_(-1.0, 1.0)
        )
        total = sum_over_ranks(error[mask].abs().sum())
        count = all_reduce_sum(torch.tensor(error[mask].size(0), device=error.device))
        scale = total / count / smoothed.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        return y_soft + scale * smoothed


class GlobalRECT_L(RECT_L):
    """``RECT_L`` whose semantic labels are means over the nodes of all ranks."""

    @torch.no_grad()
    def get_semantic_labels(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The mean feature of each selected own node's class ``[num_selected, F]``.

        Args:
            x: Features of own nodes ``[num_own, F]``.
            y: Their class labels, int64 ``[num_own]``.
            mask: Which of them to use, bool ``[num_own]`` or indices.

        Raises:
            ValueError: On all ranks, if a selected label is negative on any.
        """
        y = y[mask]
        size = num_classes(y)
        total = all_reduce_sum(scatter(x[mask], y, dim=0, dim_size=size, reduce='sum'))
        count = all_reduce_sum(torch.bincount(y, minlength=size))
        means: Tensor = total / count.clamp(min=1).view(-1, 1)
        return means[y]


class GlobalSuperGATConv(SuperGATConv):
    """``SuperGATConv`` whose loss is the mean over the positive and negative edges of all ranks."""

    _is_cut = False

    def forward(self, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The rows of own nodes; notes whether the graph is cut."""
        self._is_cut = isinstance(edge_index, ShardEdgeIndex)
        return super().forward(x, edge_index, *args, **kwargs)

    def get_attention_loss(self) -> Tensor:
        """The loss of the last forward, as :func:`pyg_sar.global_mean` gives a loss.

        Collective after a forward on a cut graph in training: one all-reduce of two numbers, and
        one in backward.
        """
        if not (self.training and self._is_cut):
            return super().get_attention_loss()
        losses = F.binary_cross_entropy_with_logits(
            self.att_x.mean(dim=-1), self.att_y, reduction='none'
        )
        local = losses.sum().double()
        total, count = sum_over_ranks(torch.stack([local, local.new_tensor(losses.numel())]))
        mean: Tensor = total / count.detach()
        return mean.to(losses.dtype)


def num_classes(y: Tensor) -> int:
    """One more than the largest class label of all ranks (collective: one small all-gather).

    The labels of own nodes are int64, and may be none. Raises ValueError on all ranks, if one is
    negative on any.
    """
    bounds = agree([int(bound) for bound in torch.aminmax(y)] if y.numel() else [0, -1])
    smallest = min(low for low, _ in bounds)
    if smallest < 0:
        raise ValueError(f"expected class labels of 0 and above in 'y' (got {smallest})")
    largest: int = max(high for _, high in bounds)
    return largest + 1


def _are_classes(y: Tensor) -> bool:
    """Whether `y` holds one label per node; the same on a rank without nodes."""
    return y.dtype == torch.int64 and math.prod(y.shape[1:]) == 1
