"""A small graph, and its folder in three parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_graphs import cut, small_graph
from torch_geometric.data import Data


@pytest.fixture
def graph() -> Data:
    return small_graph()


@pytest.fixture
def root(graph: Data, tmp_path: Path) -> str:
    return str(cut(graph, 3, tmp_path / 'parts'))
