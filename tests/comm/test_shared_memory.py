"""Ranks of one machine read rows in each other's memory, and nobody writes to them too early."""

from __future__ import annotations

import atexit
import gc
import os
import time
from itertools import count
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from ranks import run_once
from small_graphs import attempt
from torch import Tensor
from traffic import apart

from pyg_sar.comm.exchange import Exchange, start_round
from pyg_sar.comm.ranks import current
from pyg_sar.comm.send_recv import BufferPool
from pyg_sar.comm.shared_memory import SharedMemory, allocated, find_shared, writable

pytestmark = pytest.mark.skipif(not hasattr(os, 'memfd_create'), reason='needs Linux')

CPU = torch.device('cpu')
OWN = {1: os.getpid()}
"""This process stands for rank 1 as well: what it sends it can read."""


def _there_and_back(data: Any, dtype: torch.dtype | None, keep: bool) -> list[Tensor]:
    """Two tensors fetched of all ranks, and sums of gradients that came back."""
    shard = data.edge_index.handle.shard
    exchange = Exchange(shard, dtype=dtype)
    own = data.x[: shard.num_own].double(), data.n_id[: shard.num_own, None]
    found = []
    for _ in range(3):  # memory is used again
        for number, rows in enumerate(exchange.all_gather_halo(own, keep=keep)):
            found += [t * (number + 1) for t in rows]
        out = [torch.zeros_like(own[0])]
        for number, rows in exchange.reduce_scatter_halo(out, count()):
            rows[0].fill_(number + 1 + dist.get_rank())
        found += out
    return found


@pytest.mark.parametrize('keep', [False, True])
@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
@on_ranks(3, is_local=True)
def test_bits_are_those_of_messages(data, dtype, keep):
    assert {*current()._shared.pids} == {0, 1, 2} - {dist.get_rank()}
    found = _there_and_back(data, dtype, keep)
    with apart():
        expected = _there_and_back(data, dtype, keep)
    assert len(found) == len(expected) > 10
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@on_ranks(3, is_local=True)
def test_messages_tell_only_where_rows_are(data):
    shard = data.edge_index.handle.shard
    own = data.x[: shard.num_own].double().repeat(1, 50)
    exchange = Exchange(shard)

    def bytes_sent() -> int:
        with mock.patch.object(dist, 'batch_isend_irecv', wraps=dist.batch_isend_irecv) as batch:
            assert list(exchange.all_gather_halo([own]))
        ops = [op for call in batch.call_args_list for op in call.args[0]]
        return sum(op.tensor.nbytes for op in ops if op.op is dist.isend)

    steps = sum(step.send_rows > 0 for step in shard.steps)
    rows = sum(step.send_rows for step in shard.steps)
    assert bytes_sent() == 32 * steps
    with apart():
        assert bytes_sent() == rows * own[0].nbytes > 32 * steps


@on_ranks(3, num_parts=0)
def test_whole_blocks_go_round():
    rank = dist.get_rank()
    rows = torch.arange(6.0).view(2, 3) + 10 * rank
    for turn in (1, 2):
        rows = start_round(rows, turn, [2, 2, 2])()
        assert torch.equal(rows, torch.arange(6.0).view(2, 3) + 10 * ((rank - turn) % 3))


def _received(memory: SharedMemory, message: Tensor, like: Tensor) -> Tensor:
    """What this process, as rank 1, reads of a message."""
    came = torch.zeros_like(like)
    memory.receive(message, 1, [came])
    return came


def test_memory_is_filled_again_once_it_is_read():
    memory, pool = SharedMemory(OWN), BufferPool(lambda size, device: allocated(size))
    first = pool.take(64, CPU)
    first.fill_(1)
    message = memory.send([first[:64]], 1)
    pool.free.append(first)
    assert not writable([first])
    second = pool.take(64, CPU)
    assert second.data_ptr() != first.data_ptr()
    second.fill_(2)
    assert _received(memory, message, first[:64]).tolist() == [1] * 64
    assert len(writable([first])) == 1
    pool.free.append(second)
    assert pool.take(64, CPU).data_ptr() in (first.data_ptr(), second.data_ptr())


def test_what_is_no_segment_or_is_being_read_is_copied():
    memory = SharedMemory(OWN)
    plain, segment = torch.arange(5.0), allocated(20).view(torch.float32)
    segment.copy_(plain)
    messages = [memory.send([plain], 1), memory.send([segment], 1), memory.send([segment], 1)]
    plain.zero_()
    for message in messages:
        assert torch.equal(_received(memory, message, plain), torch.arange(5.0))
    assert len(writable([segment])) == 1


def test_memory_that_is_sent_stays_until_it_is_read():
    memory = SharedMemory(OWN)
    rows = allocated(4096).fill_(7)
    message, like = memory.send([rows], 1), torch.zeros(4096, dtype=torch.uint8)
    del rows
    gc.collect()
    assert _received(memory, message, like).eq(7).all()


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.bool, torch.complex64, torch.int16])
def test_rows_of_any_dtype_are_read_piece_by_piece(dtype):
    memory = SharedMemory(OWN)
    sent = torch.arange(3000).view(30, 100).to(dtype)
    came, read = torch.zeros_like(sent), os.preadv
    with mock.patch.object(
        os, 'preadv', lambda file, buffers, at: read(file, [buffers[0][:777]], at)
    ):
        memory.receive(memory.send([sent, sent[:1]], 1), 1, [came, came[:1].clone()])
    assert torch.equal(came, sent)


@pytest.mark.parametrize('what', ['file', 'secret', 'process'])
def test_memory_that_is_gone_is_an_error(what):
    memory = SharedMemory(OWN if what != 'process' else {1: 2**22 + 1})
    message = SharedMemory(OWN).send([torch.zeros(3)], 1)
    message[0, 0] += 1000 * (what == 'file')
    message[0, 1] += what == 'secret'
    with pytest.raises(RuntimeError, match='its memory is gone'):
        _received(memory, message, torch.zeros(3))


def test_other_rows_are_an_error():
    memory = SharedMemory(OWN)
    message = memory.send([torch.zeros(3)], 1)
    with pytest.raises(RuntimeError, match='12 bytes of rows came instead of 16'):
        _received(memory, message, torch.zeros(4))


def test_files_of_other_programs_stay_closed(tmp_path):
    """The process of a rank on another machine may be any process here."""
    opened, names = os.open, list[Any]()
    with (tmp_path / 'file').open('w+b') as file:
        message = torch.tensor([[file.fileno(), 0, 0, 12]])
        with (
            mock.patch.object(os, 'open', lambda *args: names.append(args) or opened(*args)),
            pytest.raises(RuntimeError, match='its memory is gone'),
        ):
            _received(SharedMemory(OWN), message, torch.zeros(3))
    assert not names


def _with_itself(own: Tensor) -> Tensor:
    return torch.stack([own, own])


def test_only_ranks_of_one_network_that_can_open_memory_share_it():
    assert find_shared(0, _with_itself, 1.0).pids == OWN

    def elsewhere(own: Tensor) -> Tensor:
        other = own.clone()
        if own.numel() == 4:
            other[3] += 1
        return torch.stack([own, other])

    def one_way(own: Tensor) -> Tensor:
        other = own if own.numel() == 4 else torch.zeros_like(own)
        return torch.stack([own, other])

    assert not find_shared(0, elsewhere, 1.0).pids
    assert not find_shared(0, one_way, 1.0).pids
    with mock.patch.object(os, 'memfd_create', side_effect=OSError):
        assert not find_shared(0, _with_itself, 1.0).pids


def _receive_late(how: str) -> Any:
    comm, came = current(), torch.zeros(9)

    def receive() -> None:
        with comm.guard('rows'):
            if dist.get_rank() == 0:
                for work in comm.start_send_recv([], 1, [torch.full((9,), 3.0)], 1, 'rows')[0]:
                    work.wait()
                if how == 'ends':
                    atexit._run_exitfuncs()
                os._exit(0)
            works, _, unpack = comm.start_send_recv([came], 0, [], 0, 'rows')
            time.sleep(1.5)
            for work in works:
                work.wait()
            unpack()

    return attempt(receive), came.tolist()


@pytest.mark.parametrize('how', ['ends', 'dies'])
def test_a_process_that_ends_waits_for_its_readers(how):
    begin = time.monotonic()
    _, (text, found) = run_once(_receive_late, 2, how, may_die=[0])
    if how == 'ends':
        assert (text, found) == ('no error', [3.0] * 9)
    else:
        assert text.startswith('ExchangeError')
        assert 'rank 0 has ended or is cut off' in text
        assert time.monotonic() - begin < 30
