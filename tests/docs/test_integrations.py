"""Metrics of torchmetrics on 3 ranks of unequal size are those of one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import Tensor


def _metrics(scores: Tensor, y: Tensor, sizes: list[int] | None) -> list[Tensor]:
    """Of the own rows of a rank, of which there are so many; None: of all rows, without ranks."""
    from torchmetrics import MeanMetric
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )

    num_classes, alone = scores.size(1), {'sync_on_compute': sizes is not None}
    metrics = [
        MulticlassAccuracy(num_classes, average='micro', **alone),
        MulticlassF1Score(num_classes, **alone),
        MulticlassConfusionMatrix(num_classes, **alone),
        MulticlassAUROC(num_classes, thresholds=50, **alone),
    ]
    if sizes is None or 0 not in sizes:
        metrics.append(MulticlassAUROC(num_classes, **alone))  # keeps all scores
    mean = MeanMetric(**alone)
    if sizes is not None:
        scores, y = (rows.split(sizes)[dist.get_rank()] for rows in (scores, y))
    for first in range(0, y.numel(), 6):  # several updates, none where there is no row
        for metric in metrics:
            metric.update(scores[first : first + 6], y[first : first + 6])
        mean.update(scores[first : first + 6, 0])
    return [metric.compute() for metric in (*metrics, mean)]


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:The ``compute`` method:UserWarning')  # of a rank without rows
@pytest.mark.parametrize('sizes', [[5, 32, 13], [0, 31, 19]])
def test_metrics_of_torchmetrics(sizes: list[int]) -> None:
    pytest.importorskip('torchmetrics')
    scores = torch.randn(50, 4, dtype=torch.float64).softmax(dim=-1)
    y = torch.randint(4, (50,))
    one = _metrics(scores, y, None)
    for of_rank in run_ranks(_metrics, 3, scores, y, sizes):
        torch.testing.assert_close(of_rank, one[: len(of_rank) - 1] + one[-1:])
