"""Faults that a GPU would punish are found here: each is put in, and must not go unseen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from ranks import RankError, run_once
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.nn import GATConv, SAGEConv

import pyg_sar
from pyg_sar.comm.buffers import BufferPool, Buffers
from pyg_sar.comm.faults.connection import Connection
from pyg_sar.comm.swap import Swap

BACKEND = 'cpu:gloo,cuda:nccl'
MUTATIONS = [
    'a forgotten device',
    'a buffer used again before its rows have left',
    'a wait left out',
    'a group that idle ranks do not connect',
]


@contextmanager
def _mutated(name: str) -> Iterator[None]:
    if name == MUTATIONS[0]:

        def take(self: BufferPool, num_bytes: int, device: torch.device) -> Tensor:
            return torch.empty(num_bytes, dtype=torch.uint8)

        change: Any = mock.patch.object(BufferPool, 'take', take)
    elif name == MUTATIONS[1]:
        begin = Swap.__init__

        def begin_and_free(self: Swap, received: Any, to: int, sent: Buffers, *args: Any) -> None:
            begin(self, received, to, sent, *args)
            sent.free()

        change = mock.patch.object(Swap, '__init__', begin_and_free)
    elif name == MUTATIONS[2]:
        change = mock.patch.object(Swap, 'wait')
    elif name == MUTATIONS[3]:
        change = mock.patch.object(Connection, 'connect_devices')
    else:
        change = mock.patch.object(Swap, '_unused', None, create=True)
    with change:
        yield


def _outputs(root: str, device: str, mutation: str = '') -> list[Tensor]:
    data = pyg_sar.load_shard(root).to(device)
    found = []
    with _mutated(mutation):
        for make in (lambda: SAGEConv(6, 8, aggr='max'), lambda: GATConv(6, 4, heads=2)):
            torch.manual_seed(0)
            conv = pyg_sar.SARConv(make().double()).to(device)
            x = data.x.clone().requires_grad_()
            out = conv(x, data.edge_index)
            out.square().sum().backward()
            assert x.grad is not None
            found += [out.detach().cpu(), x.grad.cpu()]
    return found


def _on_ranks(root: str, device: str, backend: str, mutation: str = '') -> list[list[Tensor]]:
    return run_once(_outputs, 3, root, device, mutation, backend=backend, timeout=8)


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """A partition whose ranks exchange rows in all steps, and one where a rank is idle in some."""
    folder = tmp_path_factory.mktemp('mutations')
    even = str(cut(small_graph(), 6, folder / 'even'))
    return {False: even, True: str(cut(small_graph(), 3, folder / 'idle', 'empty part'))}


@pytest.mark.parametrize('mutation', ['', *MUTATIONS])
def test_mutations_are_found(mutation: str, roots: dict[bool, str]) -> None:
    root = roots[mutation == MUTATIONS[3]]
    want = _on_ranks(root, 'cpu', 'gloo')
    try:
        found = _on_ranks(root, 'cuda', BACKEND, mutation)
    except (RankError, TimeoutError):
        if not mutation:
            raise
        return
    is_same = all(
        torch.allclose(got, expected, 0, 1e-10)
        for ours, theirs in zip(found, want, strict=True)
        for got, expected in zip(ours, theirs, strict=True)
    )
    assert is_same == (not mutation)
