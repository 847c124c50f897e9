"""Ranks that do not run the same program, and errors that leave the ranks able to go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from ranks import run_once, run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import pyg_sar
from pyg_sar import DistributedDataParallel, ExchangeError, wrap
from pyg_sar.comm import Exchange
from pyg_sar.comm.faults import connection
from pyg_sar.over_all_nodes import global_mean


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
    global_mean(F.cross_entropy(out, data.y, reduction='none'), data.train_mask).backward()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(cut(small_graph(), 3, tmp_path / 'parts'))


def _raise_on_all(root: str) -> list[str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = DistributedDataParallel(_net())
    _train(model, data)
    found = []
    with mock.patch.object(connection, 'GRACE', 60):
        for i in (0, 1, 2, 1):
            model.module.fails = i
            time.sleep(0.05 * data.edge_index.shard.rank)  # not quite at the same time
            found.append(attempt(_train, model, data))
        model.module.fails = -1
        model.zero_grad()
        return [*found, attempt(_train, model, data)]


def test_what_all_ranks_raise_leaves_them_able_to_go_on(root: str) -> None:
    for found in run_ranks(_raise_on_all, 3, root):
        assert found == ['ValueError: not this time'] * 4 + ['no error']


def _raise_on_one(root: str) -> tuple[list[str], float, str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = DistributedDataParallel(_net())
    _train(model, data)
    if data.edge_index.shard.rank == 1:
        model.module.fails = 2
    start = time.monotonic()
    found = [attempt(_train, model, data) for _ in range(2)]
    try:
        pyg_sar.over_all_nodes.global_sum(data.x)
    except ExchangeError as error:
        return found, time.monotonic() - start, f'{error.rank} {error.peer} {error.operation}'
    return found, 0.0, 'no error'


def test_what_one_rank_raises_ends_the_exchanges_of_all(root: str) -> None:
    for rank, (found, seconds, last) in enumerate(run_once(_raise_on_one, 3, root)):
        first, second = found
        if rank == 1:
            assert first == 'ValueError: not this time'
        else:
            assert first.startswith(f'ExchangeError: rank {rank} stopped at ')
            assert "layer 'convs.2' (GCNConv), forward" in first
            assert 'rank 1 failed with ValueError: not this time' in first
        assert second.startswith('ExchangeError: ')
        assert 'exchanges ended before' in second
        assert last == f'{rank} 1 a sum over all ranks'
        assert seconds < 60  # the timeout is that of the default group, 30 minutes


def _different(kind: str) -> str:
    rank = torch.distributed.get_rank()
    net, options = _net(), {}
    if kind == 'class' and rank == 2:
        net.convs[1] = GCNConv(8, 8)
    elif kind == 'setting' and rank == 2:
        net.convs[2] = GCNConv(8, 3, improved=True)
    elif kind == 'shape' and rank == 2:
        net.extra = torch.nn.Parameter(torch.zeros(2))
    elif kind == 'dtype' and rank == 2:
        net.float()
    elif kind == 'mode' and rank == 2:
        options['mode'] = 'one_shot'
    elif kind == 'no model' and rank == 2:
        net = torch.nn.Linear(2, 2)
    return attempt(DistributedDataParallel, net, **options)


@pytest.mark.parametrize(
    ('kind', 'words'),
    [
        ('class', ["'convs.1': torch_geometric.nn.conv.gat_conv.GATConv on rank 0", 'rank 2']),
        ('setting', ["'convs.2': improved=False on rank 0", 'improved=True on rank 2']),
        ('shape', ["'extra': torch.float32 of shape (2,), with gradient on rank 2"]),
        ('dtype', ['torch.float64 of shape (8, 6)', 'torch.float32 of shape (8, 6)']),
        ('mode', ['mode=sequential on rank 0', 'mode=one_shot on rank 2']),
        ('no model', ['expected the same model on all ranks', 'linear.Linear on rank 2']),
        ('same', []),
    ],
)
def test_models_are_compared(kind: str, words: list[str]) -> None:
    outcomes = run_ranks(_different, 3, kind)
    if kind == 'same':
        assert outcomes == ['no error'] * 3
    else:
        assert_all_raise(outcomes, 'ValueError', *words)


def _skip(root: str, layer: int, phase: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    net = _net()
    model = DistributedDataParallel(net, debug=True, timeout=60)
    _train(model, data)
    if data.edge_index.shard.rank == 2:
        if phase == 'forward':
            net.skipped = layer
        else:
            net.convs[layer].register_forward_hook(
                lambda m, args, out: out.detach().requires_grad_()
            )
    return attempt(_train, model, data)


@pytest.mark.slow
@pytest.mark.parametrize(('layer', 'phase'), [(1, 'forward'), (1, 'backward')])
def test_a_rank_that_skips_a_layer(root: str, layer: int, phase: str) -> None:
    outcomes = run_once(_skip, 3, root, layer, phase)
    layers = "layer 'convs.1' (GATConv)", "layer 'convs.2' (GCNConv)"
    if phase == 'backward':  # rank 2 has no more to do in it
        layers = "layer 'convs.1' (GATConv), backward", 'the sum of the gradients of parameters'
    assert_all_raise(outcomes, 'ExchangeError', 'the ranks run different programs', *layers)
    assert any('rank 2 is at' in found for found in outcomes)


def _epochs(root: str) -> list[str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = DistributedDataParallel(_net())
    found = [attempt(_train, model, data) for _ in range(2)]
    wrap(model.module, timeout=6)  # all have come as far as this, and done what takes seconds
    if data.edge_index.shard.rank != 2:
        found.append(attempt(_train, model, data))
    return found


def test_unequal_epochs_end_at_the_timeout(root: str) -> None:
    *others, last = run_once(_epochs, 3, root)
    assert last == ['no error'] * 2
    assert [found[:2] for found in others] == [['no error'] * 2] * 2
    assert_all_raise(
        [found[2] for found in others],
        'ExchangeError',
        "layer 'convs.0' (SAGEConv), forward",
        'rank 2 was silent',
        'it may run another program than the others',
        'debug=True tells where they part',
    )


@pytest.mark.parametrize('timeout', [0, -1, True, 'a minute'])
def test_timeouts_that_are_none(timeout: Any) -> None:
    with pytest.raises(ValueError, match="'timeout' must be"):
        wrap(_net(), timeout=timeout)


def _other_rows(root: str, kind: str) -> tuple[str, str]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = DistributedDataParallel(_net(), debug=True)
    _train(model, data)
    exchange = Exchange(data.edge_index.shard)
    x = data.x
    if data.edge_index.shard.rank == 1:
        x = x[:, :5] if kind == 'width' else x.float()
    return attempt(lambda: list(exchange.fetch([x]))), attempt(_train, model, data)


@pytest.mark.parametrize(
    ('kind', 'form'), [('width', 'torch.float64 (5,)'), ('dtype', 'torch.float32 (6,)')]
)
def test_other_rows_are_found_before_they_move(root: str, kind: str, form: str) -> None:
    found, later = zip(*run_once(_other_rows, 3, root, kind), strict=True)
    usual = 'rank 0 is at a step of rows (rows of torch.float64 (6,))'
    odd = f'rank 1 is at a step of rows (rows of {form})'
    for rank, text in enumerate(found):
        assert text.startswith(f'ExchangeError: rank {rank} stopped at ')
        assert (usual if rank == 1 else odd) in text
    assert_all_raise(later, 'ExchangeError', 'exchanges ended before')
