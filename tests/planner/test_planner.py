"""What training will need, predicted from the counts of a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from hetero_graphs import hetero_graph
from planner_models import USER_MODELS, cut_small_graph, meta_of
from torch import Tensor
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.nn.models import GraphSAGE

import pyg_sar
from pyg_sar.plan import MODES
from pyg_sar.planner.counts import shard_bytes, sizes_of
from pyg_sar.planner.prediction import plan, predict_cut
from pyg_sar.planner.rehearsal import Job
from pyg_sar.shard.meta import read_meta
from pyg_sar.shard.read_shard import read_shard


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_small_graph(tmp_path_factory.mktemp('planner') / 'parts')


@pytest.fixture(scope='module')
def hetero_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('planner') / 'hetero_parts'
    pyg_sar.partition_graph(hetero_graph(), 4, root, seed=0)
    return root


@pytest.mark.parametrize('is_hetero', [False, True])
@pytest.mark.parametrize('num_ranks', [1, 4])
def test_counts_are_those_of_the_loaded_shards(
    parts: Path, hetero_parts: Path, num_ranks: int, is_hetero: bool
) -> None:
    root = hetero_parts if is_hetero else parts
    meta = read_meta(root)
    cut = sizes_of(meta, num_ranks)
    assert len(cut) == num_ranks
    for rank, sizes in enumerate(cut):
        data, sent = read_shard(root, rank, num_ranks), []
        for key, store in zip(meta.edges, data.edge_stores, strict=True):
            shard, of = store.edge_index.handle.shard, sizes.relations[key]
            assert sum(sizes.nodes[meta.edges[key].src]) == shard.num_own
            assert (of.num_edges, sum(of.halo)) == (shard.num_edges, shard.num_halo)
            assert of.halo == tuple(step.recv_rows for step in shard.steps)
            sent += [step.send_index for step in shard.steps]
            assert of.boundary == sum(len(step.send_index) for step in shard.steps)
        values = [value for store in data.stores for value in store.values()]
        loaded = sum(value.nbytes for value in [*values, *sent] if isinstance(value, Tensor))
        assert shard_bytes(meta, sizes) == loaded


def test_merged_parts_are_close_to_the_loaded_shards(parts: Path) -> None:
    for rank, sizes in enumerate(sizes_of(read_meta(parts), 2)):
        shard = read_shard(parts, rank, 2).edge_index.handle.shard
        assert sizes.totals[:2] == (shard.num_own, shard.num_edges)
        assert sizes.num_halo == pytest.approx(shard.num_halo, rel=0.1)


@pytest.mark.parametrize('name', USER_MODELS)
@pytest.mark.parametrize('mode', few(MODES))
def test_any_model_and_fewer_bytes_on_more_ranks(parts: Path, name: str, mode: Any) -> None:
    predictions = plan(parts, USER_MODELS[name](), mode=mode, timed=False)
    assert [p.num_ranks for p in predictions] == [1, 2, 4]
    memory = [p.memory_bytes for p in predictions]
    assert memory == sorted(memory, reverse=True)
    assert len(set(memory)) == 3
    assert [p.bytes_per_epoch > 0 for p in predictions] == [False, True, True]
    for prediction in predictions[1:]:
        # Forward and backward, with sums in the place of some rows.
        assert prediction.rows_per_epoch >= 1.7 * prediction.halo_rows


class _Hetero(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        keys = (
            ('paper', 'cites', 'paper'),
            ('author', 'writes', 'paper'),
            ('author', 'knows', 'author'),
        )
        self.conv = HeteroConv({key: SAGEConv((-1, -1), 5) for key in keys})
        self.out = SAGEConv(5, 3)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        papers = self.conv(x, edges)['paper'].relu()
        return {'paper': self.out(papers, edges['paper', 'cites', 'paper'])}


@pytest.mark.parametrize('is_dict', [True, False])
def test_relations_are_rehearsed_as_they_are(hetero_parts: Path, is_dict: bool) -> None:
    def of_papers(model: torch.nn.Module, data: Any) -> Any:
        return model(data.x_dict, data.edge_index_dict)['paper']

    options: Any = {} if is_dict else {'forward': of_papers}
    predictions = plan(hetero_parts, _Hetero().double(), timed=False, **options)
    memory = [p.memory_bytes for p in predictions]
    assert memory == sorted(memory, reverse=True)
    assert [p.bytes_per_epoch > 0 for p in predictions] == [False, True, True]


def test_traffic_of_linear_convs_is_known_in_advance() -> None:
    meta = meta_of(6, [50, 40], [[0, 10], [8, 0]], [[100, 20], [30, 90]])
    found = predict_cut(Job(GraphSAGE(6, 16, 3, 3), meta), sizes_of(meta, 2), timed=False)
    # Sums of features are kept: nothing after the first epoch; then 16 columns forward and back,
    # and 3, as the last layer makes fewer.
    assert (found.halo_rows, found.rows_per_epoch) == (10, 40)
    assert found.bytes_per_epoch == 10 * 4 * 38
    assert found.cpu_seconds is None


def test_cpu_seconds_are_measured_on_one_thread(parts: Path) -> None:
    threads: list[int] = []

    def forward(model: torch.nn.Module, data: Any) -> Tensor:
        threads.append(torch.get_num_threads())
        return model(data.x, data.edge_index)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (prediction,) = plan(parts, GraphSAGE(6, 64, 2, 3), ranks=[4], forward=forward)
        assert (torch.get_num_threads(), set(threads)) == (2, {1, 2})
    finally:
        torch.set_num_threads(before)
    assert prediction.cpu_seconds is not None
    assert prediction.cpu_seconds > 0


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'mode': 'other'}, "'mode' must be one of"),
        ({'ranks': [3]}, 'expected ranks among which the 4 parts of .* can be dealt: 1, 2, 4'),
        ({'forward': lambda m, d: m(d.x, d.edge_index).sum()}, 'one row of logits per node'),
        ({'forward': lambda m, d: 3}, 'one row of logits per node'),
    ],
)
def test_errors_say_what_is_expected(parts: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(parts, USER_MODELS['gcn'](), **{'ranks': [2], 'timed': False, **change})
