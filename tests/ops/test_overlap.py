"""How many rows are held at once, and what travels while what is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

import pytest
import torch
from alike import cut_of
from expressions import expressions
from few import few
from ranks import run_ranks
from small_graphs import small_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from traffic import recorded

import pyg_sar
from pyg_sar import SARConv
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.send_recv import Transfer
from pyg_sar.nn.call import NUM_EDGES


def _graph() -> Data:
    return small_graph(80, 700)


MESSAGES: dict[str, Callable[[], pyg.MessagePassing]] = {
    'GINE': lambda: pyg.GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
    'EdgeConv': lambda: pyg.EdgeConv(torch.nn.Sequential(torch.nn.Linear(12, 50), torch.nn.ReLU())),
    'NN': lambda: pyg.NNConv(6, 4, torch.nn.Linear(4, 24)),
    'SAGE-median': lambda: pyg.SAGEConv(6, 4, aggr='median'),
    'SAGE-lstm': lambda: pyg.SAGEConv(6, 4, aggr='lstm'),
    'Transformer': lambda: pyg.TransformerConv(6, 4),
    'GAT': lambda: pyg.GATConv(6, 4),
}
"""Convs of every path that recomputes or gathers messages."""


@contextmanager
def _rows_held() -> Iterator[list[int]]:
    """Rows of other ranks in receive buffers, whenever that changes."""
    held, total = [0], {}
    start = GroupComm.start

    def count(self: GroupComm, transfer: Transfer) -> None:
        start(self, transfer)
        if transfer.kind != 'rows':
            return
        received: Any = transfer.received
        total[id(received)] = sum(t.size(0) for t in received.rows)
        held.append(sum(total.values()))
        free = received.free

        def freed() -> None:
            free()
            total.pop(id(received), None)
            held.append(sum(total.values()))

        received.free = freed

    with mock.patch.object(GroupComm, 'start', count):
        yield held


def _layer(root: str, name: str) -> tuple[int, list[int]]:
    """Of a layer the most rows held, and the rows of every step."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(3)
    conv = SARConv(MESSAGES[name]().double())
    edges = [data.edge_attr] if name == 'GINE' else []
    x = data.x.clone().requires_grad_()
    with _rows_held() as held:
        out = conv(x, data.edge_index, *edges)
        out.backward(torch.ones_like(out))
    assert held[-1] == 0
    return max(held), [step.recv_rows for step in data.edge_index.handle.shard.steps]


@pytest.mark.parametrize('name', ['GINE', 'GAT'])
@pytest.mark.parametrize('num_parts', few([4, 8]))
def test_rows_held(name, num_parts):
    """One block beside the next one, which travels."""
    for held, steps in run_ranks(_layer, 4, cut_of(_graph, num_parts), name):
        assert held == _largest_window(steps, 2)


def _largest_window(steps: list[int], width: int) -> int:
    """Most rows of `width` steps in a row."""
    starts = range(max(len(steps) - width, 0) + 1)
    return max(sum(steps[start : start + width]) for start in starts)


def _order_of_comm(root: str) -> tuple[list[str], list[str], list[list[str]]]:
    """The events of a fetch and of a return of gradients, and all batches of messages."""
    exchange = Exchange(pyg_sar.load_shard(root).edge_index.handle.shard)
    shard = exchange.shard
    x = torch.randn(shard.num_own, 3)
    with recorded() as forward:
        for number, _ in enumerate(exchange.all_gather_halo([x])):
            forward.note(f'compute {number}')
    with recorded() as backward:
        for number, (rows,) in exchange.reduce_scatter_halo([torch.zeros_like(x)], count()):
            rows.fill_(1.0)
            backward.note(f'compute {number}')
    return forward.events, backward.events, [*forward.ops, *backward.ops]


FORWARD = """
pack; start rows 0; compute 0
pack; wait rows 0; start rows 1; compute 1
pack; wait rows 1; start rows 2; compute 2
wait rows 2; compute 3
"""


BACKWARD = """
compute 0; compute 1; start gradients 0
compute 2; wait gradients 0; start gradients 1; add
compute 3; wait gradients 1; start gradients 2; add
wait gradients 2; add
"""


def test_the_next_block_travels_while_one_is_computed():
    """Own block first while the first remote one travels; receives are posted before sends."""
    for of_fetch, of_return, ops in run_ranks(_order_of_comm, 4, cut_of(_graph, 4)):
        assert of_fetch == expressions(FORWARD)
        assert of_return == expressions(BACKWARD)
        assert len(ops) == 6
        assert all(batch == ['irecv', 'isend'] for batch in ops)


class _Noted(pyg.MessagePassing):
    """A message that tells when it is computed."""

    note: Callable[[str], None] | None = None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        if self.note is not None and x_j.size(0) != NUM_EDGES:  # not the sampled edges
            self.note('compute')
        return x_j.tanh()


def _order_of_replay(root: str) -> list[str]:
    """The events of the backward pass of a replayed layer."""
    data = pyg_sar.load_shard(root)
    conv = SARConv(_Noted())
    x = data.x.clone().requires_grad_()
    out = conv(x, data.edge_index)
    with recorded() as backward, mock.patch.object(_Noted, 'note', backward.note):
        out.sum().backward()
    return backward.events


REPLAY_BACKWARD = """
pack; start rows 0; compute
pack; wait rows 0; start rows 1; compute; start gradients 0
wait rows 1; compute; wait gradients 0; start gradients 1; add
wait gradients 1; add
"""


def test_gradients_travel_while_the_next_block_is_recomputed():
    for events in run_ranks(_order_of_replay, 3, cut_of(_graph, 3)):
        assert events == expressions(REPLAY_BACKWARD)
