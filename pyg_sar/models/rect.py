"""RECT: mean features per class, over the labelled nodes of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn.models import RECT_L
from torch_geometric.utils import scatter

from pyg_sar.comm import all_reduce_sum
from pyg_sar.models.label_prop import num_classes


class GlobalRECT_L(RECT_L):  # type: ignore[misc]
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
