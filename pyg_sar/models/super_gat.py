"""SuperGAT's loss of its attention, which is a mean over the edges of the whole graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SuperGATConv

from pyg_sar.comm import sum_over_ranks
from pyg_sar.shard.edge_index import ShardEdgeIndex


class GlobalSuperGATConv(SuperGATConv):  # type: ignore[misc]
    """``SuperGATConv`` whose loss is the mean over the positive and negative edges of all ranks."""

    _is_cut = False

    def forward(self, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The rows of own nodes; notes whether the graph is cut."""
        self._is_cut = isinstance(edge_index, ShardEdgeIndex)
        out: Tensor = super().forward(x, edge_index, *args, **kwargs)
        return out

    def get_attention_loss(self) -> Tensor:
        """The loss of the last forward, as :func:`pyg_sar.global_mean` gives a loss.

        Collective after a forward on a cut graph in training: one all-reduce of two numbers, and
        one in backward.
        """
        if not (self.training and self._is_cut):
            out: Tensor = super().get_attention_loss()
            return out
        losses = F.binary_cross_entropy_with_logits(
            self.att_x.mean(dim=-1), self.att_y, reduction='none'
        )
        local = losses.sum().double()
        total, count = sum_over_ranks(torch.stack([local, local.new_tensor(losses.numel())]))
        mean: Tensor = total / count.detach()
        return mean.to(losses.dtype)
