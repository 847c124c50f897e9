"""What convs need the whole graph for: sizes of aggregations, chunks, the number of hyperedges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike, cut_of, gradient, take_step
from few import few
from graphs import awkward_graph
from hetero_graphs import WRITES, hetero_graph
from ranks import run_as_threads
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import HypergraphConv, MessagePassing, SimpleConv, aggr
from torch_geometric.utils import scatter, softmax

import pyg_sar
from pyg_sar.ops import chunks

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


def _of_aggregation(data: Any, wrap: Wrap, name: str) -> list[Any]:
    return take_step(wrap(_aggregation(name)), data)


@pytest.mark.parametrize('name', AGGREGATIONS)
@pytest.mark.parametrize('max_edges', few([1, 30]))
@pytest.mark.parametrize('how', few(['no nodes', 'metis', 'random']))
def test_sizes_of_the_whole_graph(
    how: str, max_edges: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the chunks are, widths and counts are those of the graph.

    On 4 ranks: of Equilibrium a gradient times 3, divided by 3, is off by 5e-9.
    """
    monkeypatch.setattr(chunks, 'MIN_EDGES', max_edges)
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 1)
    cut: Any = [i * 7 % 5 % 2 * 2 for i in range(60)] if how == 'no nodes' else how
    assert_alike(_of_aggregation, name, graph=_graph, cut=cut, ranks=(4,), tolerance=1e-10, rtol=0)


SIZES: dict[int, list[int]] = {1: [], 8: []}
_NOTES = {width: sizes.append for width, sizes in SIZES.items()}  # not seen to write


class _Median(SumConv):
    """Notes how many edges it computes at once."""

    def __init__(self) -> None:
        super().__init__(aggr='median')

    def message(self, x_j: Tensor) -> Tensor:
        if type(x_j.size(0)) is int:  # not when it is read
            _NOTES[x_j.size(1)](x_j.size(0))
        return x_j


def _two_layers(root: str) -> None:
    data = pyg_sar.load_shard(root)
    for width in (1, 8):
        pyg_sar.SARConv(_Median())(data.x[:, :width], data.edge_index)


def test_a_layer_has_chunks_of_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer before it has computed all edges of a rank at once."""
    monkeypatch.setattr(chunks, 'MIN_EDGES', 1)
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 24 * 8 * 8)
    for sizes in SIZES.values():
        sizes.clear()
    run_as_threads(_two_layers, 2, cut_of(_graph, 2, 'random'))
    assert max(SIZES[1]) > 32
    assert max(SIZES[8]) <= 24  # no destination has more in-edges


def _hypergraph_without_num_edges(root: str) -> None:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(HypergraphConv(4, 3).double())
    with pytest.raises(ValueError, match="'size'"):
        conv(data['author'].x, data[WRITES].edge_index)


def test_the_number_of_hyperedges_is_needed() -> None:
    """The last papers have no author, so the edges do not tell how many there are."""
    run_as_threads(_hypergraph_without_num_edges, 2, cut_of(hetero_graph, 2, 'random'))


class _TwoResults(MessagePassing):
    """Messages of two widths, sums and means of them, in a tuple or a dict."""

    def __init__(self, kind: str, flow: str = 'source_to_target') -> None:
        super().__init__(aggr='sum', flow=flow)
        self.kind, self.gate, self.out = kind, torch.nn.Linear(8, 1), torch.nn.Linear(9, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        a, b = self._parts(self.edge_updater(edge_index, x=x))
        return self.propagate(edge_index, x=x, a=a, b=b)

    def _both(self, a: Tensor, b: Tensor) -> Any:
        return {'a': a, 'b': b} if self.kind == 'dict' else (a, b)

    def _parts(self, both: Any) -> Any:
        return both.values() if self.kind == 'dict' else both

    def edge_update(self, x_i: Tensor, x_j: Tensor, index: Tensor) -> Any:
        return self._both(self.gate(x_i - x_j).tanh(), softmax(x_j[:, :1], index))

    def message(self, x_i: Tensor, x_j: Tensor, a: Tensor, b: Tensor) -> Any:
        return self._both(a * x_j, b * (x_i - x_j).norm(dim=1, keepdim=True))

    def aggregate(self, inputs: Any, index: Tensor, dim_size: int) -> Any:
        a, b = self._parts(inputs)
        mean = scatter(b, index, 0, dim_size, 'mean')
        return self._both(scatter(a, index, 0, dim_size, 'sum'), mean)

    def update(self, inputs: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self._parts(inputs)
        return self.out(torch.cat([a, b], 1)), x * b


def _two_results(data: Any, wrap: Wrap, kind: str) -> list[Any]:
    conv = wrap(_TwoResults(kind).double())
    x = data.x.detach().requires_grad_()
    out, scaled = conv(x, data.edge_index)
    (out.square().mean() + scaled.square().mean()).backward()
    return [out.detach(), scaled.detach(), [gradient(each) for each in (x, *conv.parameters())]]


@pytest.mark.parametrize('kind', ['tuple', 'dict'])
def test_messages_of_several_tensors(kind: str) -> None:
    assert_alike(_two_results, kind, graph=awkward_graph, ranks=(3, 1))


def test_messages_of_several_tensors_along_turned_edges() -> None:
    data = pyg_sar.load_shard(cut_of(awkward_graph, 3))
    with pytest.raises(ValueError, match='gives several tensors'):
        pyg_sar.SARConv(_TwoResults('tuple', 'target_to_source'))(data.x, data.edge_index)
