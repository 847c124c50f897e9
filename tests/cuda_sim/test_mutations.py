"""Faults that a GPU would punish: each is put in, and the check meant for it must find it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from on_ranks import parts_of
from ranks import RankError, run_once
from small_graphs import attempt
from test_gpu_waits import _waits_of_layer
from torch import Tensor
from torch.testing import assert_close
from torch_geometric.nn import GATConv, SAGEConv

import pyg_sar
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.send_recv import BufferPool, Buffers, Transfer

BACKEND = 'cpu:gloo,cuda:nccl'


def _without_device(self: BufferPool, num_bytes: int, device: torch.device) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


_begin, _wait = GroupComm.start, GroupComm.finish


def _begin_and_free(self: GroupComm, transfer: Transfer) -> None:
    _begin(self, transfer)
    assert transfer.sent is not None
    transfer.sent.free()


def _do_not_wait(self: GroupComm, transfer: Transfer) -> Buffers:
    return transfer.received


def _wait_for_the_device(self: GroupComm, transfer: Transfer) -> Buffers:
    received = _wait(self, transfer)
    torch.zeros(1, device='cuda').item()
    return received


MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    '': (GroupComm, 'no such name', None),
    'a forgotten device': (BufferPool, 'take', _without_device),
    'a buffer used again before its rows have left': (GroupComm, 'start', _begin_and_free),
    'a wait left out': (GroupComm, 'finish', _do_not_wait),
    'a group that idle ranks do not connect': (GroupComm, 'connect_devices', lambda *args: None),
    'a wait for the device in every step': (GroupComm, 'finish', _wait_for_the_device),
}


@contextmanager
def _mutated(name: str) -> Iterator[None]:
    with mock.patch.object(*MUTATIONS[name], create=not name):
        yield


def _outputs(root: str, device: str, mutation: str = '') -> list[Tensor]:
    data = pyg_sar.load_shard(root).to(device)
    found = []
    with _mutated(mutation):
        for make in (lambda: SAGEConv(6, 8, aggr='max'), lambda: GATConv(6, 4, heads=2)):
            torch.manual_seed(0)
            conv = pyg_sar.SARConv(make().double()).to(device).requires_grad_(False)
            x = data.x.clone().requires_grad_()
            out = conv(x, data.edge_index)
            out.backward(2 * out.detach())  # no sum of all ranks, which would connect them
            assert x.grad is not None
            found += pyg_sar.local([out.detach().cpu(), x.grad.cpu()])
    return found


def _on_ranks(root: str, device: str, mutation: str = '', *, timeout: int = 60) -> Any:
    backend = BACKEND if device == 'cuda' else 'gloo'
    return run_once(_outputs, 3, root, device, mutation, backend=backend, timeout=timeout)


@pytest.fixture(scope='module')
def even() -> str:
    """A partition whose ranks exchange rows in all steps."""
    return str(parts_of(6))


@pytest.fixture(scope='module')
def idle() -> str:
    """A partition where a rank is idle in some."""
    return str(parts_of(3, 'empty part'))


def _are_numbers_of_a_cpu(root: str, mutation: str = '') -> bool:
    found, expected = _on_ranks(root, 'cuda', mutation), _on_ranks(root, 'cpu')
    return attempt(assert_close, found, expected, rtol=0, atol=1e-10) == 'no error'


def test_without_a_mutation(even: str, idle: str) -> None:
    assert _are_numbers_of_a_cpu(even)
    assert _are_numbers_of_a_cpu(idle)


def test_devices_that_mix_are_found(even: str) -> None:
    with pytest.raises(RankError, match='all tensors to be on the same device'):
        _on_ranks(even, 'cuda', 'a forgotten device')


@pytest.mark.parametrize(
    'mutation', ['a buffer used again before its rows have left', 'a wait left out']
)
def test_wrong_numbers_are_found(mutation: str, even: str) -> None:
    assert not _are_numbers_of_a_cpu(even, mutation)


def test_ranks_that_wait_for_ever_are_found(idle: str) -> None:
    with pytest.raises(TimeoutError, match=r'had not finished'):
        _on_ranks(idle, 'cuda', 'a group that idle ranks do not connect', timeout=15)


def _waits(root: str, mutation: str) -> Counter[str]:
    with _mutated(mutation):
        return _waits_of_layer(root, 'SAGE')


def test_waits_for_the_device_are_found(even: str) -> None:
    for mutation in ('', 'a wait for the device in every step'):
        for found in run_once(_waits, 3, even, mutation, backend=BACKEND):
            assert bool(found) == bool(mutation), found
