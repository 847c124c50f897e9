"""Numbers of sources and targets: those of plain PyG, or an error that says what to give."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, assert_same, on_ranks, on_whole_graph
from small_graphs import attempt
from torch import Tensor
from torch_geometric.nn import GATConv, GraphConv, MessagePassing, SAGEConv
from two_types import two_types

import pyg_sar

OF = ('a', 'to', 'b')


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


graph = functools.partial(two_types, (11, 6), (4, 4), 30, turned=False)
CUT = {'a': torch.arange(11) % 3, 'b': torch.arange(6) // 2}
CONVS = {
    'own': lambda: FromSources(),
    'max': lambda: FromSources('max'),
    'SAGE': lambda: SAGEConv((4, 4), 4, root_weight=False),
    'Graph': lambda: GraphConv((4, 4), 4),
    'GAT': lambda: GATConv((4, 4), 4, add_self_loops=False),
}
METHODS = {'GAT': 'edge_updater'}
"""Which comes first, where it is not propagate."""


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp('sizes')
    pyg_sar.partition_graph(graph(), 3, folder / '3', method=CUT)
    pyg_sar.partition_graph(graph(), 1, folder / '1', method='random')
    return {size: str(folder / str(size)) for size in (1, 3)}


def _as_plain_pyg(program: Any, roots: dict[int, str], *args: Any) -> list[str]:
    """Compares what ranks give with plain PyG; gives what they say without sizes."""
    torch.manual_seed(0)
    want, said = on_whole_graph(program, graph, *args), []
    for size, root in roots.items():
        for found in on_ranks(program, size, root, *args):
            said.append(found.pop('said', ''))
            assert_same(found, {k: v for k, v in want.items() if k != 'said'}, tolerance=1e-12)
    return said


def _without_size(data: Any, wrap: Wrap, name: str, is_made: bool) -> dict[str, Any]:
    conv = wrap(CONVS[name]().double())
    edge_index = data[OF].edge_index
    if is_made:
        edge_index = torch.stack([edge_index[1], edge_index[0]]).flip(0)
    args = (data['a'].x, None), edge_index
    found: dict[str, Any] = {'sized': conv(*args, size=(11, 6)).detach()}
    if is_made:  # PyG itself runs along these, and makes a row for each source
        return found | {'plain': conv(*args).detach()}
    return found | {'said': attempt(lambda: conv(*args))}


@pytest.mark.parametrize('name', CONVS)
def test_targets_that_nothing_counts(roots: dict[int, str], name: str) -> None:
    _as_plain_pyg(_without_size, roots, name, True)
    for said in _as_plain_pyg(_without_size, roots, name, False):
        method = METHODS.get(name, 'propagate')
        assert said.startswith(f"ValueError: expected 'size' in {method} of "), said
        assert 'give size=(number of sources, number of targets)' in said


def _sized(data: Any, wrap: Wrap, scales: bool) -> Tensor:
    return wrap(Sized(scales))((data['a'].x, data['b'].x), data[OF].edge_index)


@pytest.mark.parametrize('scales', [False, True])
def test_numbers_of_sources(roots: dict[int, str], scales: bool) -> None:
    _as_plain_pyg(_sized, roots, scales)


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


def _of_one_set(data: Any, wrap: Wrap, of_sources: bool) -> dict[str, Any]:
    conv = wrap(Updated(of_sources))
    args = (data['a'].x, data['b'].x), data[OF].edge_index
    return {'said': attempt(lambda: conv(*args)), 'out': conv(*args, size=(11, 6))}


@pytest.mark.parametrize('of_sources', [False, True])
def test_numbers_of_the_other_set(roots: dict[int, str], of_sources: bool) -> None:
    """Of sources in a message, of targets in an edge_update."""
    method, what = ('propagate', 'source') if of_sources else ('edge_updater', 'target')
    for said in _as_plain_pyg(_of_one_set, roots, of_sources):
        assert said.startswith(f"ValueError: expected 'size' in {method} of Updated"), said
        assert f'no argument has a row for each {what} (got None)' in said


def test_an_update_by_edge_is_refused() -> None:
    class ByEdge(FromSources):
        def update(self, inputs: Tensor, index: Tensor) -> Tensor:
            return inputs[index]

    with pytest.raises(ValueError, match="its 'update' reads 'index', one row per edge"):
        pyg_sar.DistributedDataParallel(ByEdge())


def _against(data: Any, wrap: Wrap) -> dict[str, str]:
    conv = wrap(FromSources(flow='target_to_source').double())
    return {'said': attempt(lambda: conv((data['b'].x, None), data[OF].edge_index, (None, 6)))}


def test_against_the_edges(roots: dict[int, str]) -> None:
    for said in _as_plain_pyg(_against, roots):
        assert said.startswith("ValueError: expected 'size' in propagate of "), said


@as_one_process(ranks=(1,), parts=1)
def test_one_set_of_nodes_needs_no_size(data: Any, wrap: Wrap) -> Tensor:
    return wrap(FromSources().double())((data.x[:, :4], None), data.edge_index)
