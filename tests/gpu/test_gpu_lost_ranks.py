"""A rank that is lost under NCCL ends the others as one under gloo does: ExchangeError, in time."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
from fault_cells import Cell, Outcome, outcomes
from fault_program import PHASES
from ranks import run_once
from small_graphs import attempt
from test_faults import check
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import current, rank, set_timeout

pytestmark = pytest.mark.cuda_sim
BESIDE_GLOO, ALONE = 'cpu:gloo,cuda:nccl', 'nccl'
CELLS = [
    *(Cell(f, p, backend=BESIDE_GLOO) for f in ('killed', 'stopped', 'raises') for p in PHASES),
    Cell('killed', 'backward', backend=ALONE),
    Cell('stopped', 'forward', backend=ALONE),
]


@pytest.fixture(scope='module')
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Cell, Outcome]:
    return outcomes(CELLS, tmp_path_factory.mktemp('lost'), at_once=4)


@pytest.mark.parametrize('cell', CELLS, ids=lambda c: f'{c.fault} in {c.phase}, {c.backend}')
def test_the_others_end(found: dict[Cell, Outcome], cell: Cell) -> None:
    check(cell, found[cell])
    is_told_to_all = (cell.fault, cell.phase) == ('raises', 'load')
    for end in found[cell].ends:
        assert end['type'] == ('ValueError' if is_told_to_all else 'ExchangeError')


def _device() -> torch.device:
    set_timeout(timedelta(seconds=30))
    current().connect_devices(torch.device('cuda'))
    return torch.device('cuda')


def _exchange(what: str, peer: int, received: list[Tensor], sent: list[Tensor]) -> None:
    with current().guard(what, peer):
        for work in current().start_send_recv(received, peer, sent, peer, 'rows')[0]:
            work.wait()
    while True:
        pyg_sar.comm.collectives.all_reduce_sum(torch.zeros(1))


def _receive_too_much() -> str:
    device, own = _device(), rank()
    rows = [torch.zeros(4 + 4 * own, device=device)]
    return attempt(_exchange, 'receiving rows', 1 - own, *(([], rows) if own else (rows, [])))


def _send_first() -> str:
    device = _device()
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(_exchange, 'sending rows', 1, [], [torch.zeros(4, device=device)])


def test_a_rank_that_is_lost_before_its_first_transfer() -> None:
    """NCCL would wait in C until the two are connected: they are."""
    found = run_once(_send_first, 3, backend=BESIDE_GLOO, may_die=[1])
    for said in (found[0], found[2]):
        assert said.startswith('ExchangeError: ')
        assert 'rank 1 has ended' in said


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason='NCCL sees it where rows go by sockets')
def test_a_message_that_is_too_long() -> None:
    """NCCL's work counts as completed then, its backend tells nothing, its kernel never ends."""
    receiver, sender = run_once(_receive_too_much, 2, backend=BESIDE_GLOO)
    assert receiver.startswith('ExchangeError: ')
    assert 'the transfer between the devices failed' in receiver
    assert sender.startswith('ExchangeError: ')
