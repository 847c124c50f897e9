"""What a worker of a DataLoader, which no other rank sees, may ask of rows."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_ranks import on_ranks
from small_graphs import attempt
from torch.utils.data import DataLoader, Dataset
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm.ranks import rank


def _chosen(data: Any) -> Any:
    """A selection that no rank has made before."""
    return data.x[data.n_id % 3 == 1]


REFUSED: dict[str, Callable[[Any], Any]] = {
    'shape': lambda data: _chosen(data).shape,
    'len': lambda data: len(_chosen(data)),
    'size': lambda data: _chosen(data).size(0),
    'numel': lambda data: _chosen(data).numel(),
    'row': lambda data: data.x[3],
    'ids': lambda data: data.x[torch.tensor([0, 2])],
    'slice': lambda data: data.x[1:4],
    'sum': lambda data: data.x.sum(),
    'max': lambda data: data.x.max(0),
    'same': lambda data: _chosen(data) + _chosen(data),
    'gather': lambda data: pyg_sar.gather(data.x),
    'plain': lambda data: data.x + torch.ones(data.num_nodes, 1),
    'loss': lambda data: F.mse_loss(data.x, data.x + 1),
    'conv': lambda data: data.conv(data.x, data.edge_index).detach(),
}
ANSWERED: dict[str, Callable[[Any], Any]] = {
    'len': lambda data: len(data.x),
    'shape': lambda data: list(data.x.shape),
    'name': lambda data: repr(_chosen(data))[:5],
    'own': lambda data: pyg_sar.local(data.x + 1).sum(),
}


class _Asks(Dataset[Any]):
    def __init__(self, data: Any, questions: dict[str, Callable[[Any], Any]]) -> None:
        self.data, self.questions = data, list(questions.values())

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, i: int) -> Any:
        found: list[Any] = []
        told = attempt(lambda: found.append(self.questions[i](self.data)))
        return found[0] if found else told


def _in_worker(data: Any, questions: dict[str, Callable[[Any], Any]]) -> list[Any]:
    fork = multiprocessing.get_context('fork')
    loader = DataLoader(
        _Asks(data, questions),
        batch_size=None,
        num_workers=1,
        multiprocessing_context=fork,
        timeout=60,
    )
    return list(loader)


@pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork')
@on_ranks(by='own processes')
def test_what_asks_other_ranks_is_refused(data: Any) -> None:
    data.conv = pyg_sar.DistributedDataParallel(SAGEConv(data.x.size(1), 2).to(data.x.dtype))
    if rank() == 0:  # the others wait at the sum
        for name, told in zip(REFUSED, _in_worker(data, REFUSED), strict=True):
            assert isinstance(told, str), name
            assert 'ValueError' in told, name
            assert 'in a worker of a DataLoader' in told, name
            assert 'write num_workers=0' in told
        own = pyg_sar.local(data.x + 1).sum()
        expected = [data.num_nodes, list(data.x.shape), 'Rows(', own]
        found = _in_worker(data, ANSWERED)
        assert found == expected
    whole = pyg_sar.gather(data.x)  # the ranks are as they were
    torch.testing.assert_close(data.x.sum(0), whole.sum(0))
    assert data.conv(data.x, data.edge_index).shape == (data.num_nodes, 2)


@pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork')
@on_ranks(1)
def test_one_process_is_the_whole(data: Any) -> None:
    data.conv = SAGEConv(data.x.size(1), 2).to(data.x.dtype)
    for name, found in zip(REFUSED, _in_worker(data, REFUSED), strict=True):
        assert not isinstance(found, str), (name, found)
