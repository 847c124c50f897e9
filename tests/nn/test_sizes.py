"""Numbers of sources and targets: those of plain PyG, or an error that says what to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import attempt
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GraphConv, MessagePassing, SAGEConv

import pyg_sar

OF = ('paper', 'of', 'venue')


class FromSources(MessagePassing):
    """Asks for no size unless it gets one."""

    def __init__(self, aggr: str = 'mean', flow: str = 'source_to_target') -> None:
        super().__init__(aggr, flow=flow)
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x: Any, edge_index: Tensor, size: Any = None) -> Tensor:
        return self.propagate(edge_index, x=(self.lin(x[0]), None), size=size)


class Sized(MessagePassing):
    """Names sizes in every function, and computes with that of the sources."""

    def __init__(self, scales: bool) -> None:
        super().__init__('sum')
        self.scales = scales

    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor, index: Tensor, ptr: Any, size_i: Any, size_j: Any) -> Tensor:
        return x_j / size_j if self.scales else 2 * x_j

    def update(self, inputs: Tensor, size_i: Any, size_j: Any) -> Tensor:
        return inputs * size_j if self.scales else inputs


def graph() -> HeteroData:
    torch.manual_seed(0)
    data = HeteroData()
    data['paper'].x = torch.randn(11, 4, dtype=torch.float64)
    data['venue'].x = torch.randn(6, 4, dtype=torch.float64)
    data[OF].edge_index = torch.stack([torch.randint(n, (30,)) for n in (11, 6)])
    return data


def _on(function: Any, tmp_path: Path, *args: Any) -> list[Any]:
    """What one process and the ranks of a cut in three give."""
    halves = {'paper': torch.arange(11) % 3, 'venue': torch.arange(6) // 2}
    pyg_sar.partition_graph(graph(), 3, tmp_path / 'parts', method=halves)
    pyg_sar.partition_graph(graph(), 1, tmp_path / 'part', method='random')
    return [
        function(str(tmp_path / 'part'), *args),
        *run_as_threads(function, 3, str(tmp_path / 'parts'), *args),
    ]


CONVS = {
    'own': lambda: FromSources(),
    'max': lambda: FromSources('max'),
    'SAGE': lambda: SAGEConv((4, 4), 4, root_weight=False),
    'Graph': lambda: GraphConv((4, 4), 4),
    'GAT': lambda: GATConv((4, 4), 4, add_self_loops=False),
}


def _without_size(root: str, name: str, edges: str) -> tuple[str | Tensor, Tensor]:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    conv = pyg_sar.DistributedDataParallel(CONVS[name]().double())
    edge_index = data[OF].edge_index
    if edges == 'made':
        edge_index = torch.stack([edge_index[1], edge_index[0]]).flip(0)
    args = (data['paper'].x, None), edge_index
    outcome = attempt(lambda: conv(*args))
    if outcome == 'no error':
        outcome = pyg_sar.gather(conv(*args)).detach()
    return outcome, pyg_sar.gather(conv(*args, size=(11, 6))).detach()


@pytest.mark.parametrize('edges', ['loaded', 'made'])
@pytest.mark.parametrize('name', CONVS)
def test_targets_that_nothing_counts(tmp_path: Path, name: str, edges: str) -> None:
    """Plain PyG makes a row for each source."""
    data = graph()
    torch.manual_seed(0)
    plain = CONVS[name]().double()
    args = (data['paper'].x, None), data[OF].edge_index
    assert plain(*args).size(0) == 11
    want = plain(*args, size=(11, 6)).detach()
    for outcome, found in _on(_without_size, tmp_path, name, edges):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
        if edges == 'made':  # PyG itself runs along these
            torch.testing.assert_close(outcome, plain(*args).detach(), rtol=1e-12, atol=1e-12)
        else:
            method = 'edge_updater' if name == 'GAT' else 'propagate'  # which comes first
            assert outcome.startswith(f"ValueError: expected 'size' in {method} of "), outcome
            assert 'give size=(number of sources, number of targets)' in outcome


def _sized(root: str, scales: bool, is_pair: bool) -> Tensor:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.DistributedDataParallel(Sized(scales))
    if is_pair:
        return pyg_sar.gather(conv((data['paper'].x, data['venue'].x), data[OF].edge_index))
    edge_index = data['venue', 'by', 'venue'].edge_index
    return pyg_sar.gather(conv(data['venue'].x, edge_index))


@pytest.mark.parametrize('scales', [False, True])
def test_numbers_of_sources(tmp_path: Path, scales: bool) -> None:
    data = graph()
    want = Sized(scales)((data['paper'].x, data['venue'].x), data[OF].edge_index)
    for found in _on(_sized, tmp_path, scales, True):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


class Updated(MessagePassing):
    """Numbers of one set of nodes, where only the other has rows."""

    def __init__(self, of_sources: bool) -> None:
        super().__init__('sum')
        self.of_sources = of_sources

    def forward(self, x: Any, edge_index: Tensor, size: Any = None) -> Tensor:
        if self.of_sources:
            return self.propagate(edge_index, x=(None, x[1]), size=size)
        return self.edge_updater(edge_index, x=(x[0], None), size=size)

    def message(self, x_i: Tensor, size_j: int) -> Tensor:
        return x_i * size_j

    def update(self, inputs: Tensor, ptr: Any, dim_size: int) -> Tensor:
        return inputs / dim_size if ptr is None else 0 * inputs

    def edge_update(self, x_j: Tensor, size_i: int) -> Tensor:
        return x_j * size_i


def _of_one_set(root: str, of_sources: bool) -> tuple[str, Tensor]:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.DistributedDataParallel(Updated(of_sources))
    args = (data['paper'].x, data['venue'].x), data[OF].edge_index
    return attempt(lambda: conv(*args)), pyg_sar.gather(conv(*args, size=(11, 6)))


@pytest.mark.parametrize('of_sources', [False, True])
def test_numbers_of_the_other_set(tmp_path: Path, of_sources: bool) -> None:
    """Of sources in a message, of targets in an edge_update."""
    data = graph()
    args = (data['paper'].x, data['venue'].x), data[OF].edge_index
    want = Updated(of_sources)(*args, size=(11, 6))
    for outcome, found in _on(_of_one_set, tmp_path, of_sources):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
        method, what = ('propagate', 'source') if of_sources else ('edge_updater', 'target')
        assert outcome.startswith(f"ValueError: expected 'size' in {method} of Updated"), outcome
        assert f'no argument has a row for each {what} (got None)' in outcome


def test_an_update_by_edge_is_refused() -> None:
    class ByEdge(FromSources):
        def update(self, inputs: Tensor, index: Tensor) -> Tensor:
            return inputs[index]

    with pytest.raises(ValueError, match="its 'update' reads 'index', one row per edge"):
        pyg_sar.DistributedDataParallel(ByEdge())


def _against(root: str) -> str:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.DistributedDataParallel(FromSources(flow='target_to_source').double())
    return attempt(lambda: conv((data['venue'].x, None), data[OF].edge_index, (None, 6)))


def test_against_the_edges(tmp_path: Path) -> None:
    for outcome in _on(_against, tmp_path):
        assert outcome.startswith("ValueError: expected 'size' in propagate of "), outcome


def test_one_set_of_nodes_needs_no_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = Data(x=torch.randn(9, 4).double(), edge_index=torch.randint(9, (2, 30)))
    pyg_sar.partition_graph(data, 1, tmp_path / 'part', method='random')
    conv = FromSources().double()
    want = conv((data.x, None), data.edge_index)
    shard = pyg_sar.load_shard(tmp_path / 'part')
    found = pyg_sar.DistributedDataParallel(conv)((shard.x, None), shard.edge_index)
    torch.testing.assert_close(pyg_sar.gather(found), want)
