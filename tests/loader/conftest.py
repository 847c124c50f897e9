"""Graphs in 4 parts, for the tests that ask for no other."""

from __future__ import annotations

import pytest
from hetero_graphs import assignment, hetero_graph
from small_graphs import cut, small_graph

from pyg_sar import partition_graph


@pytest.fixture(scope='session')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 4, tmp_path_factory.mktemp('parts') / 'small'))


@pytest.fixture(scope='session')
def hetero_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp('parts') / 'hetero'
    partition_graph(hetero_graph(), 4, root, method=assignment(4))
    return str(root)
