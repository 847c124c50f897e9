"""Predicted batches beside those that a loader gives."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from planner_models import job_of
from ranks import run_as_threads
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_sar
from pyg_sar.monitor import LiveBytes
from pyg_sar.planner import predict_batches, read_statistics
from pyg_sar.planner.prediction import OVERHEAD_BYTES
from pyg_sar.planner.sampled import SampledPrediction
from pyg_sar.sampling.batch import ROUND

FANS = [4, 3]
SEEDS = 10


def _cut(folder: Path, width: int = 6) -> Path:
    """4 parts of a graph some of whose nodes have many in-edges, as those of users have."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(2, 6000, generator=generator).square() * 900
    data = Data(
        x=torch.randn(900, width, generator=generator),
        y=torch.randint(3, (900,), generator=generator),
        edge_index=torch.stack([ends[0], 899 - ends[1]]).long(),
        num_classes=3,
    )
    pyg_sar.partition_graph(data, 4, folder, seed=0)
    return folder


def _count(root: Path, negatives: float | None = None) -> list[tuple[int, int, int]]:
    data = pyg_sar.load_shard(root)
    loader: Any = pyg_sar.NeighborLoader(data, FANS, batch_size=SEEDS, drop_last=True)
    if negatives is not None:
        loader = pyg_sar.LinkNeighborLoader(
            data,
            FANS,
            batch_size=SEEDS,
            drop_last=True,
            shuffle=True,
            neg_sampling={'mode': 'binary', 'amount': negatives} if negatives else None,
        )
    counts = []
    for batch in loader:
        remote = ~torch.isin(batch.n_id, pyg_sar.local(data.n_id))
        counts.append((int(batch.num_nodes), int(batch.num_edges), int(remote.sum())))
    return counts


def _predict(
    root: Path,
    num_ranks: int,
    width: int = 6,
    batch_size: int = SEEDS,
    negatives: float | None = None,
) -> SampledPrediction:
    job, statistics = job_of(GraphSAGE(width, 16, 2, 3), width), read_statistics(root)
    return predict_batches(statistics, job, num_ranks, FANS, batch_size, negatives)


def _round(root: Path, batch_size: int) -> tuple[int, int]:
    """Bytes while the first round is made, and how many rows came in it."""
    data = pyg_sar.load_shard(root)
    loader = pyg_sar.NeighborLoader(data, FANS, batch_size=batch_size, prefetch=0)
    with LiveBytes(
        [value.as_subclass(Tensor) for _, value in pyg_sar.local(data) if isinstance(value, Tensor)]
    ) as live:
        batches = iter(loader)
        remote = [next(batches).n_id]
    remote += [batch.n_id for batch in islice(batches, ROUND - 1)]
    ids = torch.cat(remote).unique()
    return live.peak, int((~torch.isin(ids, pyg_sar.local(data.n_id))).sum())


@pytest.mark.parametrize('num_ranks', [1, 2, 4])
@pytest.mark.parametrize('negatives', [None, 0.0, 2.0])
def test_counts(tmp_path: Path, num_ranks: int, negatives: float | None) -> None:
    root = _cut(tmp_path / 'parts')
    counts = [c for rank in run_as_threads(_count, num_ranks, root, negatives) for c in rank]
    nodes, edges, remote = torch.tensor(counts, dtype=torch.float64).mean(0).tolist()
    found = _predict(root, num_ranks, negatives=negatives)
    assert found.num_nodes == pytest.approx(nodes, rel=0.3)
    assert found.num_edges == pytest.approx(edges, rel=0.3)
    assert found.remote_rows == pytest.approx(remote, rel=0.4)
    assert found.memory_bytes > found.shard_bytes + found.batch_bytes + found.peak_bytes


@pytest.mark.parametrize('num_ranks', [2, 4])
@pytest.mark.parametrize('batch_size', [SEEDS, 60])
def test_memory_of_a_round(tmp_path: Path, num_ranks: int, batch_size: int) -> None:
    width = 128  # so that rows are most of it
    root = _cut(tmp_path / 'parts', width)
    measured = run_as_threads(_round, num_ranks, root, batch_size)
    peak, rows = torch.tensor(measured, dtype=torch.float64).mean(0).tolist()
    found = _predict(root, num_ranks, width, batch_size)
    assert found.round_rows == pytest.approx(rows, rel=0.3)
    assert found.round_bytes == pytest.approx(peak, rel=0.4)


def test_memory_of_a_step(tmp_path: Path) -> None:
    root = _cut(tmp_path / 'parts')
    data = pyg_sar.load_shard(root)
    batch = next(iter(pyg_sar.NeighborLoader(data, FANS, batch_size=SEEDS)))
    model = GraphSAGE(6, 16, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    known: list[Tensor] = [batch.x, batch.y, batch.edge_index, *model.parameters()]
    with LiveBytes(known) as live:
        for _ in range(2):
            loss = model(batch.x, batch.edge_index).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = _predict(root, 1)
    assert found.peak_bytes / found.num_nodes == pytest.approx(
        live.peak / batch.num_nodes, rel=0.25
    )
    assert found.peak_bytes < OVERHEAD_BYTES  # of tensors alone
