"""What is done with graph transformers: rounded, given own rows, before restricted layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, itself
from on_ranks import on_ranks
from small_graphs import small_graph
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, Polynormer, SAGEConv, SGFormer

import pyg_sar

WIDTH = 6


class Net(Module):
    """A model of each kind of attention, and a layer behind it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.kind = Linear(WIDTH, 8), kind
        if kind == 'SGFormer':
            self.inner: Module = SGFormer(8, 8, 3, trans_dropout=0.0, gnn_dropout=0.0)
        elif kind == 'Polynormer':
            self.inner = Polynormer(8, 8, 3, in_dropout=0.0, dropout=0.0, global_dropout=0.0)
            self.inner._global = True
        else:
            self.inner = GPSConv(8, GCNConv(8, 8), heads=2, attn_type=kind)
        self.double()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        if self.kind in ('SGFormer', 'Polynormer'):
            out: Tensor = self.inner(x, edge_index, edge_index.new_zeros(x.size(0)))
        else:
            out = self.inner(x, edge_index)[:, :3]
        return out


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    """PyG's SGFormerAttention makes ones of the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _parallel(kind: str, dtype: torch.dtype | None = None) -> Any:
    torch.set_default_dtype(torch.float64)
    return pyg_sar.DistributedDataParallel(Net(kind).eval(), exchange_dtype=dtype)


def _outputs(data: Any, kind: str, dtype: torch.dtype | None) -> list[Tensor]:
    """Of the attention by itself, and of the model with its conv."""
    alone, model = _parallel(kind, dtype), _parallel(kind, dtype)
    alone.module.inner.conv = None
    rows = alone.module(data.x, data.edge_index), model(data.x, data.edge_index)
    return [pyg_sar.gather(each.detach()) for each in rows]


@pytest.mark.parametrize('kind', ['performer', 'multihead'])
@on_ranks(2)
def test_attention_is_not_rounded_where_rows_of_convs_are(data: Any, kind: str) -> None:
    exact, whole = _outputs(data, kind, None)
    same, rounded = _outputs(data, kind, torch.bfloat16)
    torch.testing.assert_close(same, exact, rtol=0, atol=0)
    assert 0 < (rounded - whole).abs().max() < 0.05


@pytest.mark.parametrize('kind', ['SGFormer', 'Polynormer', 'performer', 'multihead'])
@on_ranks(2, is_local=True)
def test_what_local_gives_is_refused(data: Any, kind: str) -> None:
    """Their attention would be to the rows of one rank."""
    with pytest.raises(ValueError, match=r'as pyg_sar\.local gives them'):
        _parallel(kind).train()(data.x, data.edge_index)


class Attended(Module):
    """Attention over all nodes, then two convs, as restricted layers where they are given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = GPSConv(WIDTH, None, heads=2, attn_type='performer', norm=None)
        self.convs = torch.nn.ModuleList([SAGEConv(WIDTH, 8), SAGEConv(8, 3)])
        self.double()

    def forward(self, data: Data, layers: Any = None) -> Tensor:
        x = self.first(data.x, data.edge_index)
        if layers is None:
            for conv in self.convs:
                x = conv(x, data.edge_index).tanh()
            return x
        x = x[layers.input_nodes]
        for conv, layer in zip(self.convs, layers, strict=True):
            x = conv((x, x[layer.dst]), layer.edge_index).tanh()
        return x


def _with_few_seeds() -> Data:
    graph = small_graph()
    graph.train_mask = torch.arange(graph.num_nodes) % 5 == 0
    return graph


@as_one_process(graph=_with_few_seeds, by='processes')
def test_attention_before_restricted_layers(data: Any, wrap: Wrap) -> list[Tensor]:
    torch.set_default_dtype(torch.float64)
    model = wrap(Attended())
    if wrap is itself:
        out = model(data)[data.train_mask]
    else:
        out = model(data, pyg_sar.restrict(data, data.train_mask, num_layers=2))
    out.square().sum(1).mean().backward()
    return [p.grad for p in model.parameters()]
