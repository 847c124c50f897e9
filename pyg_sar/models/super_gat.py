"""SuperGAT's loss of its attention, which is a mean over the edges of the whole graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SuperGATConv

from pyg_sar.comm import all_reduce_sum
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

        The value is that of the whole graph, the same on all ranks; the gradient is this rank's
        share, so that the gradients summed over the ranks are those of one process. Collective
        after a forward on a cut graph in training: one all-reduce of two numbers.
        """
        if not (self.training and self._is_cut):
            out: Tensor = super().get_attention_loss()
            return out
        losses = F.binary_cross_entropy_with_logits(
            self.att_x.mean(dim=-1), self.att_y, reduction='none'
        )
        local = losses.sum()
        count = torch.tensor(losses.numel(), dtype=torch.float64, device=losses.device)
        totals = all_reduce_sum(torch.stack([local.detach().double(), count]))
        share = local.double() / totals[1]
        # The global value, with the share's gradient; the parenthesis is exactly zero.
        mean = totals[0] / totals[1] + (share - share.detach())
        return mean.to(losses.dtype)
