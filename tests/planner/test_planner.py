"""What training will need, predicted from the counts of a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from planner_models import USER_MODELS, cut_small_graph, job_of
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_sar
from pyg_sar.planner import Planner, by_hand, from_counts, predict, read_statistics
from pyg_sar.planner.rehearsal import MODES
from pyg_sar.planner.sizes import RankSizes
from pyg_sar.shard.cover import cover_of
from pyg_sar.shard.plan import plan_of
from pyg_sar.shard.read.read_shard import read_shard


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_small_graph(tmp_path_factory.mktemp('planner') / 'parts')


@pytest.mark.parametrize('num_ranks', [1, 4])
def test_statistics_are_those_of_the_loaded_shards(parts: Path, num_ranks: int) -> None:
    statistics = read_statistics(parts)
    cut = statistics.at(num_ranks)
    assert (cut.how, len(cut.ranks)) == ('this folder', num_ranks)
    for rank, sizes in enumerate(cut.ranks):
        data = read_shard(parts, rank, num_ranks)
        shard = data.edge_index.handle.shard
        assert (sizes.num_own, sizes.num_edges) == (shard.num_own, shard.num_edges)
        assert sizes.num_halo == shard.num_halo
        assert sizes.halo == tuple(step.recv_rows for step in shard.steps)
        sent = [step.send_index for step in shard.steps]
        assert sizes.boundary == sum(map(len, sent))
        tensors = [value for _, value in data if isinstance(value, Tensor)]
        loaded = sum(t.nbytes for t in [*tensors, *sent])
        assert statistics.shard_bytes(sizes, 6) == loaded


def test_merged_parts_are_close_to_the_loaded_shards(parts: Path) -> None:
    for rank, sizes in enumerate(read_statistics(parts).at(2).ranks):
        shard = read_shard(parts, rank, 2).edge_index.handle.shard
        assert (sizes.num_own, sizes.num_edges) == (shard.num_own, shard.num_edges)
        assert sum(sizes.halo_edges) == shard.num_edges - sum(sizes.own_edges)
        assert sizes.num_halo == pytest.approx(shard.num_halo, rel=0.1)


def test_by_hand_keeps_what_was_given() -> None:
    statistics = by_hand(6400, 64000, [(0.1, 8), (0.2, 64)], [(0.9, 64)], imbalance=1.0)
    cut = statistics.at(64)
    (rank,) = cut.ranks
    assert cut.how == 'given'
    assert (rank.num_own, len(rank.halo)) == (100, 63)
    assert rank.num_edges == 1000
    assert sum(rank.halo_edges) == 200
    assert rank.num_halo == pytest.approx(90, abs=1)
    assert statistics.at(16).ranks[0].num_halo > rank.num_halo
    assert statistics.at(1).ranks == (RankSizes((6400,), (64000,)),)


def test_a_random_cut_stays_one() -> None:
    statistics = by_hand(10**6, 10**7, [(0.5, 2), (0.75, 4)], imbalance=1.0)
    (rank,) = statistics.at(8).ranks
    assert sum(rank.halo_edges) / rank.num_edges == pytest.approx(1 - 1 / 8, rel=1e-3)


@pytest.mark.parametrize('name', USER_MODELS)
@pytest.mark.parametrize('mode', few(MODES))
def test_any_model_and_fewer_bytes_on_more_ranks(name: str, mode: Any) -> None:
    statistics = by_hand(4000, 24000, [(0.2, 4)])
    options: Any = {'in_channels': 6, 'mode': mode, 'timed': False}
    found = predict(statistics, USER_MODELS[name](), ranks=[1, 2, 4, 8], **options)
    peaks = [p.peak_bytes for p in found]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4
    assert [p.shard_bytes for p in found] == sorted((p.shard_bytes for p in found), reverse=True)
    assert [r.ranks[0].bytes_per_epoch > 0 for r in found] == [False, True, True, True]
    for prediction in found[1:]:
        rank = prediction.ranks[0]
        assert rank.rows_per_epoch >= 2 * rank.sizes.num_halo  # forward and backward


def test_traffic_of_linear_convs_is_known_in_advance() -> None:
    statistics = from_counts([50, 40], [[0, 10], [8, 0]], [[100, 20], [30, 90]])
    (found,) = predict(statistics, GraphSAGE(6, 16, 3, 3), in_channels=6, timed=False)
    # Sums of features are kept: nothing after the first epoch; then 16 columns forward and back,
    # and 3, as the last layer makes fewer.
    assert [r.rows_per_epoch for r in found.ranks] == [40, 32]
    assert [r.bytes_per_epoch for r in found.ranks] == [10 * 4 * 38, 8 * 4 * 38]
    assert found.exchange_seconds == 1520 / 1.25e9
    assert found.seconds_per_epoch is None


def test_seconds_are_compute_and_exchange() -> None:
    statistics = by_hand(4000, 24000, [(0.2, 4)])
    options: Any = {'in_channels': 6, 'ranks': [1, 4], 'bandwidth': 1e6}
    one, four = predict(statistics, GraphSAGE(6, 64, 2, 3), **options)
    assert one.compute_seconds > 0
    assert one.seconds_per_epoch == one.compute_seconds
    assert four.exchange_seconds == four.ranks[0].bytes_per_epoch / 1e6
    assert four.seconds_per_epoch == four.compute_seconds + four.exchange_seconds


def test_least_ranks_is_the_least() -> None:
    job, graph = job_of(GraphSAGE(6, 16, 2, 3), 6), by_hand(40000, 240000, [(0.2, 4)])
    planner = Planner(graph, job, bandwidth=1e9, timed=False)
    limit = planner.predict(5).peak_bytes
    found = planner.least_ranks(lambda p: p.peak_bytes <= limit, 64)
    assert found is not None
    assert found.num_ranks == 5
    assert planner.least_ranks(lambda p: False, 8) is None


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'in_channels': None}, "'in_channels'"),
        ({'in_channels': 0}, "'in_channels' must be positive"),
        ({'mode': 'auto'}, "'mode' must be one of"),
        ({'bandwidth': 0}, "'bandwidth' must be positive"),
        ({'ranks': None}, "expected 'ranks'"),
        ({'ranks': [0]}, 'ranks'),
        ({'forward': lambda m, d: m(d.x, d.edge_index).sum()}, 'one row of logits per node'),
    ],
)
def test_errors_say_what_is_expected(change: dict[str, Any], message: str) -> None:
    options = {'in_channels': 6, 'ranks': [2], 'timed': False, **change}
    with pytest.raises(ValueError, match=message):
        predict(by_hand(400, 2400, [(0.2, 4)]), USER_MODELS['gcn'](), **options)


def test_rows_and_sums_that_travel_are_counted_in_the_cut(tmp_path: Path) -> None:
    """Node 0 has edges to and from all others: sums save most of its rows."""
    edges = torch.randint(1, 600, (2, 300), generator=torch.Generator().manual_seed(0))
    spokes = torch.stack([torch.arange(1, 600), torch.zeros(599, dtype=torch.int64)])
    edge_index = torch.cat([edges, spokes, spokes.flip(0)], dim=1)
    data = Data(x=torch.zeros(600, 2), edge_index=edge_index)
    summary = pyg_sar.partition_graph(data, 4, tmp_path / 'parts')
    found = 0
    for part in range(4):
        handle = read_shard(tmp_path / 'parts', part, 4).edge_index.handle
        found += sum(cover_of(b).size for b in plan_of(handle).blocks[1:])
    assert summary.cover_rows == found < 0.5 * summary.communication_volume
    assert f'with sums of rows     {found:,} rows per layer' in str(summary)
    cut = read_statistics(tmp_path / 'parts').at(4)
    assert cut.ranks[0].cover_share == found / summary.communication_volume
