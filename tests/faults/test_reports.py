"""Who is named when ranks wait for each other and come to their timeouts at different times."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_once
from small_graphs import attempt
from started import start
from torch.futures import Future

from pyg_sar.comm.faults import Reports, RootCause, TransferWatch
from pyg_sar.comm.ranks import current, set_timeout
from pyg_sar.comm.vote import agree

TIMEOUT = timedelta(seconds=20)


def _wait_for(rank: int) -> None:
    with current().guard('receiving a number', rank):
        dist.recv(torch.zeros(1), rank, group=current().group)


def _chain(delay: float, folder: str) -> str:
    """Rank 0 waits for 1, which begins later to wait for 2, which is stopped."""
    rank = dist.get_rank()
    set_timeout(TIMEOUT)
    *_, last = agree(os.getpid())
    files = [Path(folder) / str(r) for r in (0, 1)]
    found = ''
    if rank < 2:
        time.sleep(delay * rank)
        found = attempt(_wait_for, rank + 1)
        files[rank].write_text(found)
    else:
        os.kill(last, signal.SIGSTOP)
    while rank != 1 and not all(file.exists() for file in files):
        time.sleep(0.05)
    if rank == 0:
        os.kill(last, signal.SIGKILL)
    return found


@pytest.mark.bench
@pytest.mark.parametrize(('delay', 'named'), [(0, 2), (10, 1)])
def test_a_chain_of_silent_ranks(delay: float, named: int, tmp_path: Path) -> None:
    """Rank 0 names the end of it as far as the others have come to their timeouts as well."""
    first, second, _ = run_once(_chain, 3, delay, str(tmp_path), may_die=(2,), timeout=300)
    assert first.startswith(f'ExchangeError: rank {named} was silent for too long')
    assert 'rank 0 stopped at receiving a number' in first
    assert 'rank 2 was silent for too long' in second


class _Store(dict[str, str]):
    """As much of a store as reports need."""

    set = dict.__setitem__

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def _root_cause(own: RootCause, said: dict[int, RootCause], world_size: int = 4) -> RootCause:
    """What rank 0 concludes."""
    store: Any = _Store()
    reports = [Reports(store, '', rank, world_size) for rank in range(world_size)]
    for rank, cause in {0: own, **said}.items():
        reports[rank].write(cause)
    return reports[0].root_cause(own, 0.05)


def _lost(peer: int | None, *, silent: bool = False) -> RootCause:
    return RootCause(peer, None, silent)


def _in_a_sum(peer: int) -> RootCause:
    return RootCause(peer, None, True, 'a sum')


SILENT, CLOSED, FAILED = _lost(3, silent=True), _lost(3), RootCause(3, 'ValueError: no')


@pytest.mark.parametrize(
    ('own', 'said', 'found'),
    [
        # Rank 1 says nothing.
        (_lost(1), {}, _lost(1)),
        (_lost(1, silent=True), {}, _lost(1, silent=True)),
        # Rank 1 has lost another one.
        (_lost(1), {1: _lost(3)}, CLOSED),
        (_lost(1), {1: _lost(3, silent=True)}, SILENT),
        (_lost(1, silent=True), {1: _lost(2, silent=True), 2: _lost(3, silent=True)}, SILENT),
        (_lost(1), {1: _lost(3), 3: RootCause(None, 'ValueError: no')}, FAILED),
        # It has lost this one: two that do not do the same.
        (_lost(1, silent=True), {1: _in_a_sum(0)}, _in_a_sum(1)),
        # The same where that one came to its timeout first, and closed its connections.
        (_lost(1), {1: _in_a_sum(0)}, _in_a_sum(1)),
        # Rank 3 is cut off, and has lost others for its part.
        (_lost(3), {1: _lost(3), 2: _lost(3), 3: _lost(1)}, CLOSED),
        # It is not known whom this rank has lost.
        (_lost(None), {1: _lost(3), 2: _lost(1)}, CLOSED),
        (_lost(None), {1: _lost(3), 2: _lost(3), 3: _lost(1)}, _lost(None)),
        (_lost(None, silent=True), {1: _lost(None), 2: _lost(3)}, SILENT),
        (_lost(None), {1: _lost(None, silent=True), 2: _lost(None)}, SILENT),
        (_lost(1), {1: _lost(None), 2: _lost(None)}, CLOSED),
        # All have reported, and one was silent for others: that is why its connections closed.
        (_lost(None), {r: _lost(None, silent=r < 3) for r in (1, 2, 3)}, _lost(None, silent=True)),
        (_lost(None), {3: RootCause(None, 'ValueError: no')}, FAILED),
        (_lost(None), {}, _lost(None)),
    ],
)
def test_root_cause(own: RootCause, said: dict[int, RootCause], found: RootCause) -> None:
    assert _root_cause(own, said) == found


_SCRIPT = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
import pyg_sar
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
rank, store = int(sys.argv[1]), sys.argv[2]
limit = timedelta(seconds=60)
dist.init_process_group(
    'gloo', init_method=f'file://{store}', rank=rank, world_size=2, timeout=limit
)
pyg_sar.loader.mean_of_batches(torch.ones(1))
if rank == 1:
    raise KeyError('outside of all layers')
pyg_sar.loader.mean_of_batches(torch.ones(1))
"""


@pytest.mark.bench
def test_the_exception_that_ends_a_script_is_told(tmp_path: Path) -> None:
    command = ['python', '-c', _SCRIPT]
    ranks = [start([*command, rank, tmp_path / 'store']) for rank in range(2)]
    first, second = (rank.communicate(timeout=600)[1] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert 'outside of all layers' in second
    assert 'stopped at a sum over all ranks in mean_of_batches' in first
    assert "rank 1 failed with KeyError: 'outside of all layers'" in first


# Transfers between devices that fail or are late are told, whatever their own waits say.

OPERATION = 'receiving the rows of part 2'


class _Connection:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.has_heard = threading.Event()

    def lost(self, error: Exception, operation: str) -> None:
        self.told.append((str(error), operation))
        self.has_heard.set()


def _work(result: int | None, *, is_completed: bool = True) -> Any:
    """As torch.distributed gives it; `result` is that of ``get_future_result``."""
    future: Future[int] = Future()
    if result is not None:
        future.set_result(result)
    return SimpleNamespace(is_completed=lambda: is_completed, get_future_result=lambda: future)


def _of_torch_2_5(error: Exception | None) -> Any:
    return SimpleNamespace(is_completed=lambda: True, exception=lambda: error)


def _of_a_backend_that_cannot_tell() -> Any:
    def refuse() -> Any:
        raise RuntimeError('not implemented')

    return SimpleNamespace(is_completed=lambda: True, get_future_result=refuse)


BROKEN = 'the transfer between the devices failed'


@pytest.mark.parametrize(
    ('work', 'seconds', 'words'),
    [
        (_work(2), 60.0, BROKEN),
        (_of_torch_2_5(RuntimeError('lost')), 60.0, BROKEN),
        (_work(None, is_completed=False), 0.3, 'timed out after 0.3 s on the device'),
    ],
    ids=['failed', 'torch 2.5', 'late'],
)
def test_it_is_told_once(work: Any, seconds: float, words: str) -> None:
    connection = _Connection()
    watch = TransferWatch(connection.lost, seconds)
    before = [_work(0), _work(None), _of_torch_2_5(None), _of_a_backend_that_cannot_tell()]
    for each in (*before, work, work):
        watch.add(each, OPERATION)
    assert connection.has_heard.wait(60)
    assert connection.told == [(words, OPERATION)]
