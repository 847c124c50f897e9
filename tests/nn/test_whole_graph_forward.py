"""What convs need the whole graph for: sizes by chunks, numbers left behind, the order of edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from graphs import awkward_graph
from hetero_graphs import WRITES, hetero_graph
from on_ranks import on_ranks
from ranks import run_as_threads, run_ranks
from small_graphs import assert_all_raise, attempt, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import HypergraphConv, MessagePassing, SimpleConv, aggr

import pyg_sar
from pyg_sar.ops import chunks

TOLERANCE = 1e-10

AGGREGATIONS = {
    'Equilibrium': lambda: aggr.EquilibriumAggregation(8, 6, [5], 3),
    'PatchTransformer': lambda: aggr.PatchTransformerAggregation(8, 6, 3, 4, aggr=['mean', 'max']),
    'LSTM': lambda: aggr.LSTMAggregation(8, 6),
}


def _graph() -> Data:
    """Sorted by destination; one destination has far more in-edges than the others."""
    data = awkward_graph()
    extra = torch.stack([torch.arange(11), torch.full((11,), 7)])
    edge_index = torch.cat([data.edge_index, extra], dim=1)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    return Data(x=data.x, edge_index=edge_index, num_nodes=data.num_nodes)


def _aggregation(name: str) -> SimpleConv:
    conv = SimpleConv(AGGREGATIONS[name]()).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in conv.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values * 0.4)
    return conv


def _train(root: Path, name: str) -> Any:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(_aggregation(name))
    x = data.x.detach().requires_grad_()
    out = conv(x, data.edge_index)
    (out * (data.n_id.view(-1, 1) % 5 - 2) / 4).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in conv.parameters()]
    return pyg_sar.local((data.n_id, out.detach(), x.grad)), gradients


SIZES: dict[int, list[int]] = {}


class _Median(MessagePassing):
    """Notes how many edges it computes at once."""

    def __init__(self) -> None:
        super().__init__(aggr='median')

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        if type(x_j.size(0)) is int:  # not when it is read
            SIZES.setdefault(x_j.size(1), []).append(x_j.size(0))
        return x_j


def _two_layers(root: Path) -> None:
    data = pyg_sar.load_shard(root)
    for width in (1, 8):
        pyg_sar.SARConv(_Median())(data.x[:, :width], data.edge_index)


def test_a_layer_has_chunks_of_its_own_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layer before it has computed all edges of a rank at once."""
    graph = _graph()
    monkeypatch.setattr(chunks, 'MIN_EDGES', 1)
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 24 * 8 * 8)
    pyg_sar.partition_graph(graph, 2, tmp_path / 'parts', method='random')
    SIZES.clear()
    run_as_threads(_two_layers, 2, tmp_path / 'parts')
    assert max(SIZES[1]) > 32
    assert max(SIZES[8]) <= 24  # no destination has more in-edges


@pytest.mark.parametrize('name', AGGREGATIONS)
@pytest.mark.parametrize('max_edges', few([1, 30]))
@pytest.mark.parametrize('how', few(['no nodes', 'metis', 'random']))
def test_sizes_of_the_whole_graph(
    how: str, max_edges: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the chunks are, widths and counts are those of the graph.

    On 4 ranks: of Equilibrium a gradient times 3, divided by 3, is off by 5e-9.
    """
    monkeypatch.setattr(chunks, 'MIN_EDGES', max_edges)
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 1)
    graph, conv = _graph(), _aggregation(name)
    x = graph.x.detach().requires_grad_()
    want = conv(x, graph.edge_index)
    nodes = torch.arange(graph.num_nodes)
    (want * (nodes.view(-1, 1) % 5 - 2) / 4).sum().backward()
    generator = torch.Generator().manual_seed(0)
    two_of_four = torch.randint(2, (graph.num_nodes,), generator=generator) * 2
    method: Any = two_of_four if how == 'no nodes' else how
    pyg_sar.partition_graph(graph, 4, tmp_path / 'parts', method=method)
    for (n_id, out, grad), gradients in run_as_threads(_train, 4, tmp_path / 'parts', name):
        if n_id.numel():
            assert (out - want[n_id]).abs().max() <= TOLERANCE
            assert (grad - x.grad[n_id]).abs().max() <= TOLERANCE
        for own, parameter in zip(gradients, conv.parameters(), strict=True):
            expected = torch.zeros_like(own) if parameter.grad is None else parameter.grad
            scale = max(1.0, expected.abs().max().item())
            assert (own - expected).abs().max() <= TOLERANCE * scale


class _LeavesLargest(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.largest = 0.0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x) / self.largest

    def message(self, x_j: Tensor) -> Tensor:
        self.largest = float(x_j.abs().max())
        return x_j


class _LeavesCount(_LeavesLargest):
    def message(self, x_j: Tensor) -> Tensor:
        self.largest = x_j.size(0)
        return x_j


@pytest.mark.parametrize('conv', [_LeavesLargest, _LeavesCount])
@on_ranks()
def test_numbers_that_depend_on_all_edges(data, conv):
    graph = small_graph()
    want = conv().double()(graph.x, graph.edge_index)[data.n_id]
    torch.testing.assert_close(pyg_sar.SARConv(conv().double())(data.x, data.edge_index), want)


def _hypergraph_without_num_edges(root: Path) -> str:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(HypergraphConv(4, 3).double())
    return attempt(conv, data['author'].x, data[WRITES].edge_index)


def test_the_number_of_hyperedges_is_needed(tmp_path: Path) -> None:
    """The last papers have no author, so the edges do not tell how many there are."""
    pyg_sar.partition_graph(hetero_graph(), 2, tmp_path / 'parts', method='random')
    outcomes = run_ranks(_hypergraph_without_num_edges, 2, tmp_path / 'parts')
    assert_all_raise(outcomes, 'ValueError', "'size'")
