"""Ranks that do not run the same program, and errors that leave the ranks able to go on."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from on_ranks import on_ranks
from small_graphs import attempt
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from pyg_sar import DistributedDataParallel, ExchangeError
from pyg_sar.comm import connection


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(6, 8), GATConv(8, 8), GCNConv(8, 3)])
        self.fails = self.skipped = -1

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for i, conv in enumerate(self.convs):
            if i == self.fails:
                raise ValueError('not this time')
            if i != self.skipped:
                x = conv(x, edge_index)
        return x


def _net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def _train(model: torch.nn.Module, data: Any) -> None:
    out = model(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()


@on_ranks()
def test_what_all_ranks_raise_leaves_them_able_to_go_on(data):
    model = DistributedDataParallel(_net())
    _train(model, data)
    with mock.patch.object(connection, 'GRACE', 60):
        for i in (0, 1, 2, 1):
            model.module.fails = i
            time.sleep(0.05 * dist.get_rank())  # not quite at the same time
            with pytest.raises(ValueError, match='not this time'):
                _train(model, data)
        model.module.fails = -1
        model.zero_grad()
        _train(model, data)


@on_ranks(by='own processes')
def test_what_one_rank_raises_ends_the_exchanges_of_all(data):
    rank, model = dist.get_rank(), DistributedDataParallel(_net())
    _train(model, data)
    model.module.fails = 2 if rank == 1 else -1
    start = time.monotonic()
    first, second = (attempt(_train, model, data) for _ in range(2))
    if rank == 1:
        assert first == 'ValueError: not this time'
    else:
        assert first.startswith('ExchangeError: rank 1 failed with ValueError: not this time')
        assert f'; rank {rank} stopped at ' in first
        assert "layer 'convs.2' (GCNConv), forward" in first
    assert second.startswith('ExchangeError: ')
    assert 'exchanges ended before' in second
    with pytest.raises(ExchangeError) as error:
        data.x.mean()
    found = error.value.rank, error.value.peer, error.value.operation
    assert found == (rank, 1, 'a sum over all ranks')
    assert time.monotonic() - start < 60  # the timeout is that of the default group, 30 minutes


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (
            'net.convs[1] = GCNConv(8, 8)',
            ["'convs.1': torch_geometric.nn.conv.gat_conv.GATConv on rank 0", 'rank 2'],
        ),
        (
            'net.convs[2] = GCNConv(8, 3, improved=True)',
            ["'convs.2': improved=False on rank 0", 'improved=True on rank 2'],
        ),
        (
            'net.extra = torch.nn.Parameter(torch.zeros(2))',
            ["'extra': torch.float32 of shape (2,), with gradient on rank 2"],
        ),
        ('net.float()', ['torch.float64 of shape (8, 6)', 'torch.float32 of shape (8, 6)']),
        ("options['mode'] = 'one_shot'", ['mode=sequential on rank 0', 'mode=one_shot on rank 2']),
        (
            'net = torch.nn.Linear(2, 2)',
            ['expected the same model on all ranks', 'linear.Linear on rank 2'],
        ),
        ('', []),
    ],
)
@on_ranks(3, 0)
def test_models_are_compared(change, words):
    found = {'net': _net(), 'options': {}}
    if dist.get_rank() == 2:
        exec(change, globals(), found)
    with pytest.raises(ValueError, match='rank 2') if words else nullcontext() as error:
        DistributedDataParallel(found['net'], **found['options'])
    assert not words or all(word in str(error.value) for word in words)


@pytest.mark.slow
@on_ranks(by='own processes')
def test_a_rank_that_skips_a_layer(data):
    net = _net()
    model = DistributedDataParallel(net, timeout=60)
    _train(model, data)
    if dist.get_rank() == 2:
        net.skipped = 1
    with pytest.raises(ExchangeError, match='run the same lines on every rank') as error:
        _train(model, data)
    for layer in ("layer 'convs.1'", "layer 'convs.2'"):
        assert layer in str(error.value)
    assert dist.get_rank() == 2 or 'rank 2 is at' in str(error.value)


@on_ranks(by='own processes')
def test_unequal_epochs_end_at_the_timeout(data):
    model = DistributedDataParallel(_net())
    for _ in range(2):
        _train(model, data)
    # All have come as far as this, and done what takes seconds.
    DistributedDataParallel(model.module, timeout=6)
    if dist.get_rank() == 2:
        return
    with pytest.raises(ExchangeError, match='rank 2 was silent') as error:
        _train(model, data)
    assert "layer 'convs.0' (SAGEConv), forward" in str(error.value)
    assert 'all ranks must make the same calls' in str(error.value)


@pytest.mark.parametrize('timeout', [0, -1, True, 'a minute'])
def test_timeouts_that_are_none(timeout: Any) -> None:
    with pytest.raises(ValueError, match="'timeout' must be"):
        DistributedDataParallel(_net(), timeout=timeout)
