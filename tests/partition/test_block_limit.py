"""A block with more edges than 32 bits count is refused, when it is cut and when it is loaded."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.partition.partition_graph import partition_graph
from pyg_sar.shard import csr as segments

LIMIT = 12
TWO_CLIQUES = torch.cartesian_prod(torch.arange(4), torch.arange(4)).t()
TWO_CLIQUES = TWO_CLIQUES[:, TWO_CLIQUES[0] != TWO_CLIQUES[1]]
TWO_CLIQUES = torch.cat([TWO_CLIQUES, TWO_CLIQUES + 4], dim=1)
"""12 edges each."""

HALVES = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, 'MAX_EDGES', LIMIT)


def _graph(edge_index: torch.Tensor = TWO_CLIQUES) -> Data:
    return Data(edge_index=edge_index, num_nodes=8)


@pytest.mark.usefixtures('small_limit')
def test_partition(tmp_path):
    message = r'expected at most 12 edges .*\(got 24\); use more parts'
    with pytest.raises(ValueError, match=message):
        partition_graph(_graph(), 1, tmp_path / 'one')
    assert list(tmp_path.iterdir()) == []
    partition_graph(_graph(), 2, tmp_path / 'two', method=HALVES)
    one_more = torch.cat([TWO_CLIQUES, torch.tensor([[5], [5]])], dim=1)
    with pytest.raises(ValueError, match=r'\(got 13\); use more parts'):
        partition_graph(_graph(one_more), 2, tmp_path / 'more', method=HALVES)
    assert [path.name for path in tmp_path.iterdir()] == ['two']


def test_load(tmp_path, monkeypatch):
    """One process that holds both parts has the blocks of both."""
    both = torch.cat([TWO_CLIQUES, torch.tensor([[0], [4]])], dim=1)
    partition_graph(_graph(both), 2, tmp_path / 'two', method=HALVES)
    monkeypatch.setattr(segments, 'MAX_EDGES', LIMIT)
    with pytest.raises(ValueError, match=r'\(got 13\); use more parts'):
        pyg_sar.local(pyg_sar.load_shard(tmp_path / 'two'))


@pytest.mark.usefixtures('small_limit')
def test_segments():
    """Those of an edge_index that a conv has added self loops to."""
    ids = torch.zeros(LIMIT, dtype=torch.int64)
    assert segments.make_segments(ids, ids, 1).ptr.tolist() == [0, LIMIT]
    with pytest.raises(ValueError, match=r'\(got 13\); use more parts'):
        segments.make_segments(torch.zeros(13).long(), torch.zeros(13).long(), 1)
