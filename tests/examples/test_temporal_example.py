"""The temporal example: its answers are right, and the same on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from example_programs import example
from ranks import run_as_threads
from torch_geometric.nn.models import GraphSAGE

import pyg_sar


def test_answers_are_of_the_last_messages() -> None:
    graph = example('temporal_sampled').draw_graph(60)
    color, ends = graph.x[:, 1].tolist(), graph.edge_index.t().tolist()
    for node, (asked, y) in enumerate(zip(graph.asked.tolist(), graph.y.tolist(), strict=True)):
        for time, answer in zip(asked, y, strict=True):
            got = [
                color[src] for when, (src, dst) in enumerate(ends) if dst == node and when <= time
            ]
            last = got[-3:]
            assert answer == (2 * sum(last) > len(last))


def _trained(root: str, strategy: str) -> list[float]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(2, 8, 2, out_channels=2).double())
    data.x = data.x.double()
    steps = list(example('temporal_sampled').train(model, data, strategy, 2, 16))
    return [value.item() for step in steps for value in step]


@pytest.mark.parametrize('strategy', ['last', pytest.param('uniform', marks=pytest.mark.slow)])
def test_the_same_on_any_number_of_ranks(tmp_path: Path, strategy: str) -> None:
    pyg_sar.partition_graph(
        example('temporal_sampled').draw_graph(200), 4, tmp_path, method='random'
    )
    (want,) = run_as_threads(_trained, 1, str(tmp_path), strategy)
    assert (want[-1] > 0.9) == (strategy == 'last')
    for found in run_as_threads(_trained, 4, str(tmp_path), strategy):
        assert found == pytest.approx(want, abs=1e-9, rel=0)
