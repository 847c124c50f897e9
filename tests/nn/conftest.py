"""A small graph, and its three parts in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_graphs import cut, small_graph
from torch_geometric.data import Data

import pyg_sar


@pytest.fixture
def graph() -> Data:
    return small_graph()


@pytest.fixture
def shard(graph: Data, tmp_path: Path) -> Data:
    """Three parts in one process."""
    return pyg_sar.load_shard(cut(graph, 3, tmp_path / 'parts'))
