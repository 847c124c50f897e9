"""Large sums that the message before them announces: one message, and no rank that waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from small_graphs import attempt
from torch import Tensor
from torch_geometric.nn import GraphSAGE
from traffic import Traffic, counted

import pyg_sar
from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import in_layer
from pyg_sar.comm.ranks import set_timeout
from pyg_sar.comm.sums import Announced
from pyg_sar.comm.vote import agree, vote


def _collectives(*traffic: Traffic) -> tuple[int, ...]:
    return tuple(each.others + each.all_to_alls for each in traffic)


def _sum(length: int = 400, value: float = 1.0) -> Tensor:
    return all_reduce_sum(torch.full((length,), value + dist.get_rank()))


def _decide() -> None:
    vote('a decision of all ranks', True)


@pytest.mark.parametrize(('norm', 'last'), [(None, (4, 1, 1)), ('batch_norm', (8, 1, 3))])
@on_ranks()
def test_a_step(data, norm, last):
    """A layer one in forward and none in backward, a loss one and none, the gradients one.

    The first layer one more for its features. Statistics of a norm two in forward, in backward one.
    """
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 3, 3, norm=norm))
    optimizer, found = torch.optim.Adam(model.parameters()), []
    for _ in range(5):
        with counted() as of_layers:
            out = model(data.x.float(), data.edge_index)
        with counted() as of_loss:
            loss = out.square().mean()
        optimizer.zero_grad()
        with counted() as of_gradients:
            loss.backward()
        found.append(_collectives(of_layers, of_loss, of_gradients))
        optimizer.step()
    assert found[4] == last
    if norm is None:
        assert [of_loss for _, of_loss, _ in found] == [1] * 5
        assert found[0][2] == 2  # of the gradients


@pytest.mark.parametrize(
    ('lengths', 'counts'), [([400] * 4, [4, 3, 2, 2]), ([400, 400, 350, 400, 400], [4, 3, 5, 3, 3])]
)
@on_ranks(3, 0, by='own processes')
def test_values(lengths, counts):
    """A step may have other sums: all ranks leave out those that were announced, once."""
    found = []
    for length in lengths:
        _decide()
        with counted() as traffic:
            assert [float(t) for t in (_sum(length)[0], _sum(length + 1)[-1])] == [6.0, 6.0]
        found += _collectives(traffic)
    assert found == counts


@on_ranks(2, 0, by='own processes')
def test_what_follows_now_and_then_is_not_announced():
    """Messages of the first sum of every step; every third step has one more sum behind it."""
    found = []
    for step in range(9):
        _decide()
        with counted() as traffic:
            _sum()
        found += _collectives(traffic)
        if step % 3 == 2:
            _sum(370)
    assert found == [2, 1, 1, 1, 1, 1, 1, 1, 1]


@on_ranks(2, 0)
def test_sums_that_are_no_numbers():
    found = []
    for value in (1.0, 1.0, torch.nan, torch.inf, 1.0):
        _decide()
        found.append(float(_sum(value=value)[0]))
    assert str(found) == '[3.0, 3.0, nan, inf, 3.0]'


def _sum_of_another_layer() -> Tensor:
    with in_layer("layer 'other'"):
        return _sum()


OTHERS: dict[str, Callable[[], object]] = {
    'a decision': _decide,
    'a short sum': lambda: _sum(3),
    'another long sum': lambda: _sum(390),
    'the sum of another layer': _sum_of_another_layer,
    'values': lambda: agree(['abc' * 1000]),
}


@pytest.mark.parametrize(('name', 'odd'), [*zip(OTHERS, (0, 2, 2, 0, 2), strict=True)])
@on_ranks(3, 0, by='own processes')
def test_a_rank_that_comes_to_something_else(name, odd):
    """All raise, with the name of both operations; no rank waits, none is ended by gloo."""
    rank = dist.get_rank()
    set_timeout(timedelta(seconds=20))
    for _ in range(3):
        _decide()
        _sum()
    _decide()
    first = attempt(OTHERS[name] if rank == odd else _sum)
    later = attempt(agree, None)
    assert first.startswith('ExchangeError: ') or later.startswith('ExchangeError: ')
    if rank != odd:
        assert first.startswith(f'ExchangeError: rank {odd} is at ')
        assert 'stopped at a sum over all ranks' in first


@on_ranks(2, 0)
def test_all_leave_it_out():
    """Another connection is made; then the sum comes again."""
    for _ in range(3):
        _decide()
        _sum()
    _decide()
    set_timeout(timedelta(seconds=50))
    assert float(_sum()[0]) == 3.0
    _decide()
    _decide()
    assert float(_sum()[0]) == 3.0


def test_what_is_known_has_an_end() -> None:
    """A program whose every step is another one fills no memory."""
    announced, comm = Announced(), Comm()
    for step in range(2000):
        announced.by(comm, f'{step}')
        announced.sum_by(comm, 'a sum', torch.ones(1))
    assert len(announced._known) == 1000
