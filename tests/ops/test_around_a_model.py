"""What is done with graph transformers: saved and loaded, rounded, before restricted layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import parts_of
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GPSConv, Polynormer, SAGEConv, SGFormer

import pyg_sar

WIDTH = 6
TOLERANCE = {'rtol': 1e-10, 'atol': 1e-10}


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


KINDS = ['SGFormer', 'Polynormer', 'performer', 'multihead']
kinds = pytest.mark.parametrize('kind', KINDS)


@pytest.fixture(autouse=True)
def _double() -> Any:
    """PyG's SGFormerAttention makes ones of the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _of(kind: str) -> tuple[Module, torch.optim.Optimizer]:
    torch.set_default_dtype(torch.float64)
    model = Net(kind)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _outputs(root: str, kind: str, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Of the attention by itself, and of the model with its conv."""
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_of(kind)[0].eval(), exchange_dtype=dtype)
    if kind in ('performer', 'multihead'):
        model.module.inner.conv = None
    alone = model.module(data.x, data.edge_index)
    model = pyg_sar.DistributedDataParallel(_of(kind)[0].eval(), exchange_dtype=dtype)
    return pyg_sar.gather(alone.detach()), pyg_sar.gather(model(data.x, data.edge_index).detach())


@pytest.mark.parametrize('kind', ['performer', 'multihead'])
def test_attention_is_not_rounded_where_rows_of_convs_are(kind: str) -> None:
    root = str(parts_of(2))
    exact, whole = run_ranks(_outputs, 2, root, kind, None)[0]
    same, rounded = run_ranks(_outputs, 2, root, kind, torch.bfloat16)[0]
    torch.testing.assert_close(same, exact, rtol=0, atol=0)
    assert 0 < (rounded - whole).abs().max() < 0.05


@kinds
def test_what_local_gives_is_refused(kind: str) -> None:
    """Their attention would be to the rows of one rank."""
    root = str(parts_of(2))
    outcomes = run_ranks(_plain, 2, root, kind)
    assert_all_raise(outcomes, 'ValueError', 'as pyg_sar.local gives them')


def _plain(root: str, kind: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = pyg_sar.DistributedDataParallel(_of(kind)[0])
    return attempt(lambda: model(data.x, data.edge_index))


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


def _restricted(root: str) -> dict[str, Tensor]:
    torch.set_default_dtype(torch.float64)
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(Attended())
    layers = pyg_sar.restrict(data, data.train_mask, num_layers=2)
    model(data, layers).square().sum(1).mean().backward()
    return {name: p.grad for name, p in model.module.named_parameters()}


def test_attention_before_restricted_layers(tmp_path: Path) -> None:
    graph = small_graph()
    graph.train_mask = torch.arange(graph.num_nodes) % 5 == 0
    found = run_ranks(_restricted, 3, str(cut(graph, 3, tmp_path / 'parts')))
    model = Attended()
    model(graph)[graph.train_mask].square().sum(1).mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[1][name], parameter.grad, **TOLERANCE)
