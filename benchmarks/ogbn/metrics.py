"""The metric of ogbn-proteins."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def mean_roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve, over all ranks' rows: the mean of the tasks with both labels."""
    if dist.is_initialized():
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, (scores, labels))
        scores, labels = (torch.cat(parts) for parts in zip(*ranks, strict=True))
    areas = []
    for score, label in zip(scores.T, labels.T, strict=True):
        positive = int(label.sum())
        negative = label.numel() - positive
        if not positive or not negative:
            continue
        # The Mann-Whitney statistic; equal scores share their mean rank.
        _, place, count = score.unique(return_inverse=True, return_counts=True)
        rank = (count.cumsum(0) - (count - 1) / 2)[place]
        area = (rank[label > 0].double().sum() - positive * (positive + 1) / 2) / positive
        areas.append(float(area) / negative)
    return sum(areas) / max(len(areas), 1)
