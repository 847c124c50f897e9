"""What changes between forwards changes how messages are computed, on all ranks or as an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike
from on_ranks import on_ranks
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
from pyg_sar.comm.ranks import rank

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


def _run(conv: Any, name: str, data: Data) -> Tensor:
    out: Tensor = conv(data.x, data.edge_index, *([data.edge_attr] if name == 'GINE' else []))
    return out


@pytest.mark.parametrize('name', CONVS)
@on_ranks(by='threads')
def test_a_hook_on_one_rank(data, name):
    """An error on all ranks at once, where the others waited before."""
    conv: Any = SARConv(CONVS[name]().double())
    _run(conv, name, data)
    if rank() == 1:
        conv.register_message_forward_hook(HOOKS['scales'])
    with pytest.raises(ValueError, match='message_forward_hooks'):
        _run(conv, name, data)


def _hooked_later(data: Any, wrap: Wrap, name: str, kind: str) -> Tensor:
    conv: Any = wrap(CONVS[name]().double())
    _run(conv, name, data)
    conv.register_message_forward_hook(HOOKS[kind])
    return _run(conv, name, data).detach()


@pytest.mark.parametrize('kind', HOOKS)
@pytest.mark.parametrize('name', CONVS)
def test_a_hook_on_all_ranks(name: str, kind: str) -> None:
    if name == 'SAGE median':  # sorts messages of all ranks, as a hook sees all edges at once
        with pytest.raises(ValueError, match="'sort' of rows"):
            assert_alike(_hooked_later, name, kind)
        return
    assert_alike(_hooked_later, name, kind)


def _modes(data: Any, wrap: Wrap) -> list[Tensor]:
    conv = wrap(MixesInTraining())
    return [conv.train(mode)(data.x, data.edge_index) for mode in (False, True)]


def test_a_message_that_mixes_edges_in_training() -> None:
    assert_alike(_modes)


@on_ranks(by='threads')
def test_evaluation_on_one_rank(data):
    conv: Any = SARConv(GATConv(6, 4, dropout=0.5).double())
    conv(data.x, data.edge_index)
    conv.train(rank() != 2)
    with pytest.raises(ValueError, match='in evaluation on rank'):
        conv(data.x, data.edge_index)


def _widths(data: Any, wrap: Wrap) -> list[Tensor]:
    conv, x = wrap(SimpleConv('mean')), torch.cat([data.x, data.x.sin()], 1)
    return [conv(x[:, :width], data.edge_index) for width in (6, 2, 4, 2)]


def test_one_conv_for_several_widths() -> None:
    assert_alike(_widths)


def _looked_at(data: Any, wrap: Wrap) -> Tensor:
    """A program may log activations on rank 0 alone."""
    conv: Any = wrap(GATConv(6, 4).double())
    conv(data.x, data.edge_index)
    seen: list[Tensor] = []
    if rank() == 0:
        conv.register_forward_hook(lambda module, args, out: seen.append(out))
        conv.lin.register_forward_hook(lambda module, args, out: seen.append(out))
    out = conv(data.x, data.edge_index)
    assert len(seen) == (2 if rank() == 0 else 0)
    return out.detach()


def test_hooks_that_look_on_on_one_rank() -> None:
    assert_alike(_looked_at)
