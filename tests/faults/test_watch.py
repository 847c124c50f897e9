"""Transfers between devices that fail or are late are told, whatever their own waits say."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from torch.futures import Future

from pyg_sar.comm.faults import TransferWatch

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


FAILED = 'the transfer between the devices failed'


@pytest.mark.parametrize(
    ('work', 'seconds', 'words'),
    [
        (_work(2), 60.0, FAILED),
        (_of_torch_2_5(RuntimeError('lost')), 60.0, FAILED),
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
