"""A small graph, its folder in three parts, and these in one process."""

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
def root(graph: Data, tmp_path: Path) -> str:
    return str(cut(graph, 3, tmp_path / 'parts'))


@pytest.fixture
def shard(root: str) -> Data:
    """Three parts in one process."""
    return pyg_sar.load_shard(root)
