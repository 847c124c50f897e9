"""Large sums that the message before them announces: one message, and no rank that waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from on_ranks import parts_of
from ranks import run_once, run_ranks
from small_graphs import attempt
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import pyg_sar
from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import in_layer
from pyg_sar.comm.ranks import set_timeout
from pyg_sar.comm.sums import Announced
from pyg_sar.comm.vote import agree, vote

SENDING = 'all_reduce', 'all_gather', 'broadcast', 'all_to_all_single'


class Messages:
    """Counts collectives since it was read last."""

    def __init__(self) -> None:
        self._mocks = [mock.patch.object(dist, n, wraps=getattr(dist, n)) for n in SENDING]
        self._calls = [m.start() for m in self._mocks]
        self._before = 0

    def __call__(self) -> int:
        count = sum(call.call_count for call in self._calls) - self._before
        self._before += count
        return count

    def stop(self) -> None:
        for m in self._mocks:
            m.stop()


def _sum(length: int = 400, value: float = 1.0) -> Tensor:
    return all_reduce_sum(torch.full((length,), value + dist.get_rank()))


def _decide() -> None:
    vote('a decision of all ranks', True)


def _messages_of_steps(root: str, norm: str | None) -> list[tuple[int, int, int]]:
    """Of every step those of the layers, of the loss and of backward."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 3, 3, norm=norm))
    optimizer, messages, found = torch.optim.Adam(model.parameters()), Messages(), []
    for _ in range(5):
        out = model(data.x.float(), data.edge_index)
        of_layers = messages()
        loss = out.square().mean()
        of_loss = messages()
        optimizer.zero_grad()
        loss.backward()
        found.append((of_layers, of_loss, messages()))
        optimizer.step()
    messages.stop()
    return found


def test_a_step():
    """A layer one in forward and none in backward, a loss one and none, the gradients one."""
    root = str(parts_of(3))
    for steps in run_ranks(_messages_of_steps, 3, root, None):
        assert [of_loss for _, of_loss, _ in steps] == [1] * 5
        assert steps[0][2] == 2  # of the gradients
        assert steps[4] == (4, 1, 1)  # the layers, and the features of the first


def test_norms():
    """In forward two messages for statistics, in backward one."""
    root = str(parts_of(3))
    for steps in run_ranks(_messages_of_steps, 3, root, 'batch_norm'):
        assert steps[4] == (8, 1, 3)


def _values(lengths: list[int]) -> list[Any]:
    """What sums of these lengths give after a decision, step by step, and how many messages."""
    messages, found = Messages(), []
    for length in lengths:
        _decide()
        messages()
        found.append([float(t) for t in (_sum(length)[0], _sum(length + 1)[-1])])
        found.append(messages())
    messages.stop()
    return found


@pytest.mark.parametrize(
    ('lengths', 'counts'), [([400] * 4, [4, 3, 2, 2]), ([400, 400, 350, 400, 400], [4, 3, 5, 3, 3])]
)
def test_values(lengths: list[int], counts: list[int]) -> None:
    """A step may have other sums: all ranks leave out those that were announced, once."""
    for found in run_once(_values, 3, lengths):
        assert found[::2] == [[6.0, 6.0]] * len(lengths)
        assert found[1::2] == counts


def _now_and_then(num_steps: int) -> list[int]:
    """Messages of the first sum of every step; every third step has one more sum behind it."""
    messages, found = Messages(), []
    for step in range(num_steps):
        _decide()
        messages()
        _sum()
        found.append(messages())
        if step % 3 == 2:
            _sum(370)
    messages.stop()
    return found


def test_what_follows_now_and_then_is_not_announced() -> None:
    assert run_once(_now_and_then, 2, 9) == [[2, 1, 1, 1, 1, 1, 1, 1, 1]] * 2


def _not_a_number() -> list[float]:
    found = []
    for value in (1.0, 1.0, torch.nan, torch.inf, 1.0):
        _decide()
        found.append(float(_sum(value=value)[0]))
    return found


def test_sums_that_are_no_numbers() -> None:
    for found in run_ranks(_not_a_number, 2):
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


def _part(name: str, odd: int) -> tuple[str, str]:
    set_timeout(timedelta(seconds=20))
    for _ in range(3):
        _decide()
        _sum()
    _decide()
    other = attempt(OTHERS[name] if dist.get_rank() == odd else _sum)
    return other, attempt(agree, None)


@pytest.mark.parametrize(('name', 'odd'), [*zip(OTHERS, (0, 2, 2, 0, 2), strict=True)])
def test_a_rank_that_comes_to_something_else(name: str, odd: int) -> None:
    """All raise, with the name of both operations; no rank waits, none is ended by gloo."""
    for rank, (first, later) in enumerate(run_once(_part, 3, name, odd)):
        assert first.startswith('ExchangeError: ') or later.startswith('ExchangeError: '), name
        if rank != odd:
            assert first.startswith(f'ExchangeError: rank {odd} is at ')
            assert 'stopped at a sum over all ranks' in first


def _later() -> tuple[int, int]:
    """All ranks leave a sum out; another connection is made; then it comes again."""
    for _ in range(3):
        _decide()
        _sum()
    _decide()
    set_timeout(timedelta(seconds=50))
    kept = float(_sum()[0])
    _decide()
    _decide()
    return kept, float(_sum()[0])


def test_all_leave_it_out() -> None:
    assert run_ranks(_later, 2) == [(3.0, 3.0)] * 2


def test_what_is_known_has_an_end() -> None:
    """A program whose every step is another one fills no memory."""
    announced, comm = Announced(), Comm()
    for step in range(2000):
        announced.by(comm, f'{step}')
        announced.sum_by(comm, 'a sum', torch.ones(1))
    assert len(announced._known) == 1000
