"""What changes between forwards changes how messages are computed, on all ranks or as an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from small_graphs import cut, small_graph
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

import pyg_sar
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


def _run(conv: Any, name: str, data: Data) -> Tensor:
    needs_attr = name == 'GINE'
    out: Tensor = conv(data.x, data.edge_index, *([data.edge_attr] if needs_attr else []))
    return out


@pytest.fixture(scope='module')
def graph() -> Data:
    return small_graph()


@pytest.fixture
def root(graph, tmp_path):
    return str(cut(graph, 3, tmp_path / 'parts'))


def _hooked_later(root: str, name: str, kind: str, ranks: list[int]) -> tuple[str, Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(0)
    conv: Any = SARConv(CONVS[name]().double())
    _run(conv, name, data)
    if dist.get_rank() in ranks:
        conv.register_message_forward_hook(HOOKS[kind])
    try:
        out = _run(conv, name, data).detach()
    except ValueError as error:
        return str(error), data.n_id, data.x
    return '', data.n_id, out


@pytest.mark.parametrize('name', CONVS)
def test_a_hook_on_one_rank(root, name):
    """An error on all ranks at once, where the others waited before."""
    for error, _, _ in run_ranks(_hooked_later, 3, root, name, 'scales', [1]):
        assert 'expected the same layer on all ranks' in error
        assert 'message_forward_hooks' in error


@pytest.mark.parametrize('kind', HOOKS)
@pytest.mark.parametrize('name', CONVS)
def test_a_hook_on_all_ranks(graph, root, name, kind):
    if (name, kind) == ('SAGE median', 'mixes edges'):  # sorts messages of all ranks
        for error, _, _ in run_ranks(_hooked_later, 3, root, name, kind, [0, 1, 2]):
            assert "'sort' of rows" in error
        return
    torch.manual_seed(0)
    plain: Any = CONVS[name]().double()
    plain.register_message_forward_hook(HOOKS[kind])
    want = _run(plain, name, graph)
    for error, ids, out in run_ranks(_hooked_later, 3, root, name, kind, [0, 1, 2]):
        assert not error
        torch.testing.assert_close(out, want[ids].detach(), rtol=1e-10, atol=1e-10)


def _trained_later(root: str) -> tuple[Tensor, Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv: Any = SARConv(MixesInTraining()).eval()
    out = conv(data.x, data.edge_index)
    return data.n_id, out, conv.train()(data.x, data.edge_index)


def test_a_message_that_mixes_edges_in_training(graph, root):
    plain = MixesInTraining()
    wants = [plain.train(mode)(graph.x, graph.edge_index) for mode in (False, True)]
    for ids, *outs in run_ranks(_trained_later, 3, root):
        for out, want in zip(outs, wants, strict=True):
            torch.testing.assert_close(out, want[ids], rtol=1e-10, atol=1e-10)


def _in_training_on_one_rank(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv: Any = SARConv(GATConv(6, 4, dropout=0.5).double())
    conv(data.x, data.edge_index)
    conv.train(dist.get_rank() != 2)
    try:
        conv(data.x, data.edge_index)
    except ValueError as error:
        return str(error)
    return ''


def test_evaluation_on_one_rank(root):
    for error in run_ranks(_in_training_on_one_rank, 3, root):
        assert 'in evaluation on rank' in error


def _with_other_widths(root: str) -> list[Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv: Any = SARConv(SimpleConv('mean'))
    widths = [data.x, data.x[:, :2], data.pos.flatten(1).double(), data.x[:, :2]]
    return [data.n_id, *(conv(x, data.edge_index) for x in widths)]


def test_one_conv_for_several_widths(graph, root):
    plain = SimpleConv('mean')
    xs = [graph.x, graph.x[:, :2], graph.pos.flatten(1).double(), graph.x[:, :2]]
    wants = [plain(x, graph.edge_index) for x in xs]
    for ids, *outs in run_ranks(_with_other_widths, 3, root):
        for out, want in zip(outs, wants, strict=True):
            torch.testing.assert_close(out, want[ids], rtol=1e-10, atol=1e-10)


def _with_a_hook_that_looks_on(root: str) -> tuple[Tensor, Tensor, int]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(0)
    conv: Any = SARConv(GATConv(6, 4).double())
    conv(data.x, data.edge_index)
    seen: list[Tensor] = []
    if dist.get_rank() == 0:
        conv.register_forward_hook(lambda module, args, out: seen.append(out))
        conv.lin.register_forward_hook(lambda module, args, out: seen.append(out))
    return data.n_id, conv(data.x, data.edge_index).detach(), len(seen)


def test_hooks_that_look_on_on_one_rank(graph, root):
    """A program may log activations on rank 0 alone."""
    torch.manual_seed(0)
    want = GATConv(6, 4).double()(graph.x, graph.edge_index)
    results = run_ranks(_with_a_hook_that_looks_on, 3, root)
    assert [count for _, _, count in results] == [2, 0, 0]
    for ids, out, _ in results:
        torch.testing.assert_close(out, want[ids].detach(), rtol=1e-10, atol=1e-10)


def _as_wide_as_a_part(root: str) -> tuple[Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    width = data.num_nodes if dist.get_rank() == 0 else 0
    widths = torch.tensor(width)
    dist.all_reduce(widths)
    x = data.x[:, :1].repeat(1, int(widths))
    conv: Any = SARConv(SimpleConv('sum'))
    conv(data.x, data.edge_index)
    few = data.edge_index[:, : int(widths)]
    conv(x, few)
    return data.n_id, conv(x, data.edge_index)


def test_features_as_many_as_nodes_of_one_rank(graph, root):
    """Numbers that happen to be equal on one rank change nothing."""
    results = run_ranks(_as_wide_as_a_part, 3, root)
    want = SimpleConv('sum')(graph.x[:, :1], graph.edge_index)
    for ids, out in results:
        torch.testing.assert_close(out, want[ids].expand_as(out), rtol=1e-10, atol=1e-10)
