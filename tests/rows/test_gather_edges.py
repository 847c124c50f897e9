"""``gather`` of an edge_index has the ids of the whole graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_graphs import cut, small_graph
from torch import Tensor

import pyg_sar
from pyg_sar.comm.threads import run_threads


def _gathered(root: Path) -> tuple[Tensor, Tensor]:
    edge_index = pyg_sar.load_shard(root).edge_index
    return pyg_sar.gather(edge_index), pyg_sar.gather(edge_index.flip(0))


@pytest.mark.parametrize('world_size', [1, 3])
def test_all_edges(world_size: int, tmp_path: Path) -> None:
    graph = small_graph()
    root = cut(graph, 3, tmp_path / 'parts')
    for found, flipped in run_threads(_gathered, world_size, root):
        assert torch.equal(found, graph.edge_index)
        assert torch.equal(flipped, graph.edge_index.flip(0))
