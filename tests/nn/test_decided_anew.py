"""What changes between forwards changes how messages are computed, on all ranks or as an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike
from on_ranks import on_ranks
from sum_conv import SumConv
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from pyg_sar import SARConv
from pyg_sar.comm.ranks import rank

CONVS: dict[str, Callable[[], pyg.MessagePassing]] = {
    'GCN': lambda: pyg.GCNConv(6, 4),
    'SAGE': lambda: pyg.SAGEConv(6, 4),
    'SAGE max': lambda: pyg.SAGEConv(6, 4, aggr='max'),
    'SAGE median': lambda: pyg.SAGEConv(6, 4, aggr='median'),
    'GAT': lambda: pyg.GATConv(6, 4),
    'Transformer': lambda: pyg.TransformerConv(6, 4),
    'GINE': lambda: pyg.GINEConv(torch.nn.Linear(6, 4), edge_dim=4),
}
HOOKS: dict[str, Callable[..., Any]] = {
    'scales': lambda _, args, out: out * 2,
    'mixes edges': lambda _, args, out: out - out.mean(0),
}


class MixesInTraining(SumConv):
    """A message that depends on the other edges only while the conv trains."""

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


@on_ranks(by='threads')
def test_evaluation_on_one_rank(data):
    conv: Any = SARConv(pyg.GATConv(6, 4, dropout=0.5).double())
    conv(data.x, data.edge_index)
    conv.train(rank() != 2)
    with pytest.raises(ValueError, match='in evaluation on rank'):
        conv(data.x, data.edge_index)


def _widths(data: Any, wrap: Wrap) -> list[Tensor]:
    """One conv for several widths."""
    conv, x = wrap(pyg.SimpleConv('mean')), torch.cat([data.x, data.x.sin()], 1)
    return [conv(x[:, :width], data.edge_index) for width in (6, 2, 4, 2)]


def _looked_at(data: Any, wrap: Wrap) -> Tensor:
    """A program may log activations on rank 0 alone."""
    conv: Any = wrap(pyg.GATConv(6, 4).double())
    conv(data.x, data.edge_index)
    seen: list[Tensor] = []
    if rank() == 0:
        conv.register_forward_hook(lambda module, args, out: seen.append(out))
        conv.lin.register_forward_hook(lambda module, args, out: seen.append(out))
    out = conv(data.x, data.edge_index)
    assert len(seen) == (2 if rank() == 0 else 0)
    return out.detach()


@pytest.mark.parametrize('program', [_modes, _widths, _looked_at])
def test_forwards_that_differ(program: Any) -> None:
    assert_alike(program)
