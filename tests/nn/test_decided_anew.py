"""What changes between forwards changes how messages are computed, on all ranks or as an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GINEConv,
    MessagePassing,
    SAGEConv,
    SimpleConv,
    TransformerConv,
)

from pyg_sar import SARConv

CONVS: dict[str, Callable[[], MessagePassing]] = {
    'GCN': lambda: GCNConv(6, 4),
    'SAGE': lambda: SAGEConv(6, 4),
    'SAGE max': lambda: SAGEConv(6, 4, aggr='max'),
    'SAGE median': lambda: SAGEConv(6, 4, aggr='median'),
    'GAT': lambda: GATConv(6, 4),
    'Transformer': lambda: TransformerConv(6, 4),
    'GINE': lambda: GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
}
HOOKS: dict[str, Callable[..., Any]] = {
    'scales': lambda _, args, out: out * 2,
    'mixes edges': lambda _, args, out: out - out.mean(0),
}


class MixesInTraining(MessagePassing):
    """A message that depends on the other edges only while the conv trains."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j - x_j.mean(0) if self.training else x_j


GRAPH = small_graph()


def _run(conv: Any, name: str, data: Data) -> Tensor:
    out: Tensor = conv(data.x, data.edge_index, *([data.edge_attr] if name == 'GINE' else []))
    return out


def _close(out: Tensor, want: Tensor, data: Data) -> None:
    assert_close(out.detach(), want.detach()[data.n_id], tolerance=1e-10)


@pytest.mark.parametrize('name', CONVS)
@on_ranks()
def test_a_hook_on_one_rank(data, name):
    """An error on all ranks at once, where the others waited before."""
    conv: Any = SARConv(CONVS[name]().double())
    _run(conv, name, data)
    if dist.get_rank() == 1:
        conv.register_message_forward_hook(HOOKS['scales'])
    with pytest.raises(ValueError, match='message_forward_hooks'):
        _run(conv, name, data)


@pytest.mark.parametrize('kind', HOOKS)
@pytest.mark.parametrize('name', CONVS)
@on_ranks()
def test_a_hook_on_all_ranks(data, name, kind):
    plain: Any = CONVS[name]().double()
    conv: Any = SARConv(copy.deepcopy(plain))
    _run(conv, name, data)
    for each in (plain, conv):
        each.register_message_forward_hook(HOOKS[kind])
    if name == 'SAGE median':  # sorts messages of all ranks, as a hook sees all edges at once
        with pytest.raises(ValueError, match="'sort' of rows"):
            _run(conv, name, data)
        return
    _close(_run(conv, name, data), _run(plain, name, GRAPH), data)


@on_ranks()
def test_a_message_that_mixes_edges_in_training(data):
    plain, conv = MixesInTraining(), SARConv(MixesInTraining())
    for mode in (False, True):
        out = conv.train(mode)(data.x, data.edge_index)
        _close(out, plain.train(mode)(GRAPH.x, GRAPH.edge_index), data)


@on_ranks()
def test_evaluation_on_one_rank(data):
    conv: Any = SARConv(GATConv(6, 4, dropout=0.5).double())
    conv(data.x, data.edge_index)
    conv.train(dist.get_rank() != 2)
    with pytest.raises(ValueError, match='in evaluation on rank'):
        conv(data.x, data.edge_index)


@on_ranks()
def test_one_conv_for_several_widths(data):
    plain, conv = SimpleConv('mean'), SARConv(SimpleConv('mean'))
    for width in (6, 2, 4, 2):
        own, whole = (torch.cat([d.x, d.x.sin()], 1)[:, :width] for d in (data, GRAPH))
        _close(conv(own, data.edge_index), plain(whole, GRAPH.edge_index), data)


@on_ranks()
def test_hooks_that_look_on_on_one_rank(data):
    """A program may log activations on rank 0 alone."""
    plain = GATConv(6, 4).double()
    conv: Any = SARConv(copy.deepcopy(plain))
    conv(data.x, data.edge_index)
    seen: list[Tensor] = []
    if dist.get_rank() == 0:
        conv.register_forward_hook(lambda module, args, out: seen.append(out))
        conv.lin.register_forward_hook(lambda module, args, out: seen.append(out))
    _close(conv(data.x, data.edge_index), plain(GRAPH.x, GRAPH.edge_index), data)
    assert len(seen) == (2 if dist.get_rank() == 0 else 0)
