"""Metrics, schedulers and early stopping on 3 ranks of unequal size decide as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from graphs import NUM_CLASSES, NUM_FEATURES, awkward_graph
from ranks import run_as_threads, run_ranks
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import pyg_sar

_OF_RANKS = torch.tensor([0] * 7 + [1] * 38 + [2] * 15)  # which part a node goes to
_EPOCHS = 60


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return GraphSAGE(NUM_FEATURES, 16, 2, NUM_CLASSES, norm='batch_norm').double()


def _train(model: torch.nn.Module, data: Any) -> dict[str, Any]:
    """Trains with a scheduler and early stopping that look at the nodes without the mask."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=1e-2)
    best, bad_epochs, rates, seen = float('inf'), 0, [], []
    for _ in range(_EPOCHS):
        losses = F.cross_entropy(model(data.x, data.edge_index), data.y, reduction='none')
        loss, other = (
            losses[data.train_mask].mean(),
            float(losses[~data.train_mask].detach().mean()),
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(other)
        rates.append(optimizer.param_groups[0]['lr'])
        seen.append(other)
        best, bad_epochs = (other, 0) if other < best else (best, bad_epochs + 1)
        if bad_epochs == 5:
            break
    weights = torch.cat([p.detach().view(-1) for p in model.parameters()])
    return {'rates': rates, 'seen': torch.tensor(seen), 'weights': weights}


def _on_a_rank(root: Path) -> dict[str, Any]:
    model = pyg_sar.DistributedDataParallel(_model())
    return _train(model, pyg_sar.load_shard(root))


def test_scheduler_and_early_stopping(tmp_path: Path) -> None:
    graph = awkward_graph()
    pyg_sar.partition_graph(graph, 3, tmp_path / 'parts', method=_OF_RANKS)
    one = _train(_model(), graph)
    assert len(one['rates']) < _EPOCHS, 'it stops early'
    assert len(set(one['rates'])) > 1, 'the rate is lowered'
    for of_rank in run_as_threads(_on_a_rank, 3, tmp_path / 'parts'):
        assert of_rank['rates'] == one['rates']
        torch.testing.assert_close(of_rank['seen'], one['seen'])
        torch.testing.assert_close(of_rank['weights'], one['weights'], rtol=1e-6, atol=1e-8)


def test_a_scheduler_that_sees_one_rank_differs(tmp_path: Path) -> None:
    """What the page warns of: each rank sees other losses."""
    pyg_sar.partition_graph(awkward_graph(), 3, tmp_path / 'parts', method=_OF_RANKS)
    seen = run_as_threads(_local_losses, 3, tmp_path / 'parts')
    assert len(set(seen)) == 3


def _local_losses(root: Path) -> float:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    out = pyg_sar.DistributedDataParallel(_model())(data.x, data.edge_index)
    return F.cross_entropy(out, data.y).item()


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
