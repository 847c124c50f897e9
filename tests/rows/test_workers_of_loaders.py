"""What a worker of a DataLoader, which no other rank sees, may ask of rows."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from expressions import expressions
from on_ranks import on_ranks
from torch.utils.data import DataLoader, Dataset
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm.ranks import rank

REFUSED = """
chosen.shape; len(chosen); chosen.size(0); chosen.numel(); data.x[3]; data.x[torch.tensor([0, 2])]
data.x[1:4]; data.x.sum(); data.x.max(0); chosen + data.x[data.n_id % 3 == 1]
F.mse_loss(data.x, data.x + 1); pyg_sar.gather(data.x); data.x + torch.ones(data.num_nodes, 1)
data.conv(data.x, data.edge_index).detach()
"""
ANSWERED = """
len(data.x); list(data.x.shape); repr(chosen)[:5]; pyg_sar.local(data.x + 1).sum()
"""
NAMES = {'F': F, 'pyg_sar': pyg_sar, 'torch': torch}


class _Asks(Dataset[Any]):
    def __init__(self, data: Any, questions: list[str]) -> None:
        self.data, self.questions = data, questions

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, i: int) -> Any:
        data = self.data
        try:  # a selection that no rank has made before
            names = {'data': data, 'chosen': data.x[data.n_id % 3 == 1]}
            return eval(self.questions[i], NAMES | names)
        except Exception as error:
            return f'{type(error).__name__}: {error}'


def _in_worker(data: Any, table: str) -> list[Any]:
    fork = multiprocessing.get_context('fork')
    loader = DataLoader(
        _Asks(data, expressions(table)),
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
        for name, told in zip(expressions(REFUSED), _in_worker(data, REFUSED), strict=True):
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
    for name, found in zip(expressions(REFUSED), _in_worker(data, REFUSED), strict=True):
        assert not isinstance(found, str), (name, found)
