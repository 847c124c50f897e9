"""What nothing tells, sizes or features: those of plain PyG, or an error that says what to give."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, itself
from on_ranks import on_ranks
from torch import Tensor
from torch_geometric import nn as pyg
from two_types import two_types

import pyg_sar

OF = ('a', 'to', 'b')


class FromSources(pyg.MessagePassing):
    """Asks for no size unless it gets one."""

    def __init__(self, aggr: str = 'mean', flow: str = 'source_to_target') -> None:
        super().__init__(aggr, flow=flow)
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x: Any, edge_index: Tensor, size: Any = None) -> Tensor:
        return self.propagate(edge_index, x=(self.lin(x[0]), None), size=size)


class Sized(pyg.MessagePassing):
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
CONVS = {
    'own': lambda: FromSources(),
    'max': lambda: FromSources('max'),
    'SAGE': lambda: pyg.SAGEConv((4, 4), 4, root_weight=False),
    'Graph': lambda: pyg.GraphConv((4, 4), 4),
    'GAT': lambda: pyg.GATConv((4, 4), 4, add_self_loops=False),
}
METHODS = {'GAT': 'edge_updater'}
"""Which comes first, where it is not propagate."""

on_one_and_three = pytest.mark.parametrize(('ranks', 'parts'), [((1,), 1), ((3,), 3)])


def _raises(method: str, words: str) -> Any:
    return pytest.raises(ValueError, match=f"^expected 'size' in {method} of .*{words}")


@pytest.mark.parametrize('is_made', [False, True])
@pytest.mark.parametrize('name', CONVS)
@on_one_and_three
@as_one_process(graph=graph, cut='random', tolerance=1e-12)
def test_targets_that_nothing_counts(
    data: Any, wrap: Wrap, name: str, is_made: bool, ranks: Any, parts: int
) -> list[Tensor]:
    conv, edge_index = wrap(CONVS[name]().double()), data[OF].edge_index
    if is_made:
        edge_index = torch.stack([edge_index[1], edge_index[0]]).flip(0)
    args = (data['a'].x, None), edge_index
    found = [conv(*args, size=(11, 6)).detach()]
    if is_made:  # PyG itself runs along these, and makes a row for each source
        found.append(conv(*args).detach())
    elif wrap is not itself:
        words = r'give size=\(number of sources, number of targets\)'
        with _raises(METHODS.get(name, 'propagate'), words):
            conv(*args)
    return found


@pytest.mark.parametrize('scales', [False, True])
@on_one_and_three
@as_one_process(graph=graph, cut='random', tolerance=1e-12)
def test_numbers_of_sources(data: Any, wrap: Wrap, scales: bool, ranks: Any, parts: int) -> Tensor:
    return wrap(Sized(scales))((data['a'].x, data['b'].x), data[OF].edge_index)


class Updated(pyg.MessagePassing):
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


@pytest.mark.parametrize('of_sources', [False, True])
@on_one_and_three
@as_one_process(graph=graph, cut='random', tolerance=1e-12)
def test_numbers_of_the_other_set(
    data: Any, wrap: Wrap, of_sources: bool, ranks: Any, parts: int
) -> Tensor:
    """Of sources in a message, of targets in an edge_update."""
    conv, args = wrap(Updated(of_sources)), ((data['a'].x, data['b'].x), data[OF].edge_index)
    method, what = ('propagate', 'source') if of_sources else ('edge_updater', 'target')
    if wrap is not itself:
        with _raises(method, rf'Updated.*no argument has a row for each {what} \(got None\)'):
            conv(*args)
    return conv(*args, size=(11, 6))


def test_an_update_by_edge_is_refused() -> None:
    class ByEdge(FromSources):
        def update(self, inputs: Tensor, index: Tensor) -> Tensor:
            return inputs[index]

    with pytest.raises(ValueError, match="its 'update' reads 'index', one row per edge"):
        pyg_sar.DistributedDataParallel(ByEdge())


@on_one_and_three
@as_one_process(graph=graph, cut='random')
def test_against_the_edges(data: Any, wrap: Wrap, ranks: Any, parts: int) -> None:
    conv = wrap(FromSources(flow='target_to_source').double())
    if wrap is not itself:
        with _raises('propagate', ''):
            conv((data['b'].x, None), data[OF].edge_index, (None, 6))


@as_one_process(ranks=(1,), parts=1)
def test_one_set_of_nodes_needs_no_size(data: Any, wrap: Wrap) -> Tensor:
    return wrap(FromSources().double())((data.x[:, :4], None), data.edge_index)


# Nodes without features: node ids take the place of PyG's None


WITHOUT_X: dict[str, Any] = {
    'RGCN': lambda: pyg.RGCNConv(40, 4, 3, num_bases=2),
    'FastRGCN': lambda: pyg.FastRGCNConv(40, 4, 3),
    'SAGE': lambda: pyg.SAGEConv(40, 4),
    'GCN': lambda: pyg.GCNConv(40, 4),
}


@pytest.mark.parametrize('name', WITHOUT_X)
@on_ranks(2, by='threads')
def test_what_to_do_is_told(data, name):
    types = (data.edge_type,) if 'RGCN' in name else ()
    with pytest.raises(ValueError, match=r'got None.*pyg_sar\.NodeEmbedding') as error:
        pyg_sar.SARConv(WITHOUT_X[name]())(None, data.edge_index, *types)
    assert ('data.n_id' in str(error.value)) == ('RGCN' in name)


@as_one_process(tolerance=1e-12)
def test_ids_in_the_place_of_none(data: Any, wrap: Wrap) -> list[Any]:
    conv = wrap(WITHOUT_X['RGCN']().double())
    out = conv(None if wrap is itself else data.n_id, data.edge_index, data.edge_type)
    out.square().mean().backward()
    return [out.detach(), *(p.grad for p in conv.parameters())]
