"""Never silently wrong: what block by block or rank by rank would be wrong raises, on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from few import few
from on_ranks import on_ranks
from ranks import run_ranks
from small_graphs import assert_close, small_graph
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree, scatter, softmax

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv

EXACT: dict[str, Callable[..., Tensor]] = {
    'divides by degree': lambda self, x_j, index, size_i: (
        x_j / degree(index, size_i)[index].view(-1, 1)
    ),
    'takes the maximum': lambda self, x_j, index, dim_size: (
        x_j - scatter(x_j, index, 0, dim_size, reduce='max')[index]
    ),
    'own softmax': lambda self, x_j, index, size_i: (
        x_j.exp() / x_j.new_zeros(size_i, x_j.size(1)).index_add(0, index, x_j.exp())[index]
    ),
    'counts edges': lambda self, x_j, index: x_j / torch.bincount(index)[index].view(-1, 1),
    'destinations by their other name': lambda self, x_j, edge_index_i: (
        x_j / degree(edge_index_i)[edge_index_i].view(-1, 1)
    ),
    'softmax of the last dimension': lambda self, x_j, index: softmax(x_j.t(), index, dim=1).t(),
}
"""With all in-edges of a node at hand these are exact."""

OF_ALL_EDGES: dict[str, Callable[..., Tensor]] = {
    'ids as numbers': lambda self, x_j, index: x_j * index.view(-1, 1),
    'ids as a list': lambda self, x_j, index: x_j * (1 + len(set(index.tolist()))),
    'largest id': lambda self, x_j, index: x_j * float(index.max()),
    'sources': lambda self, x_j, edge_index_j: x_j * edge_index_j.view(-1, 1),
    'counts messages': lambda self, x_j, index: x_j / index.numel(),
    'subtracts the mean': lambda self, x_j: x_j - x_j.mean(0),
    'softmax of all edges': lambda self, x_j: x_j.softmax(dim=0),
    'batch norm': lambda self, x_j: F.batch_norm(x_j, None, None, training=True),
    'numbers edges': lambda self, x_j: x_j * torch.arange(x_j.size(0)).view(-1, 1),
}
"""These run on rows of the edges of all ranks."""


class SoftmaxOverOtherGroups(SumConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        group = torch.arange(edge_index.size(1)) % 3
        return self.propagate(edge_index, x=x, group=group)

    def message(self, x_j: Tensor, group: Tensor) -> Tensor:
        return softmax(x_j, group, num_nodes=3)


class KeepsTensor(SumConv):
    """Its gradient would never reach the linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.scale = self.lin.weight.sum(0).tanh()
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * self.scale


class KeepsEdgeTensor(SumConv):
    """One row per edge of the whole, where a message sees one block."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.weight = torch.arange(edge_index.size(1)).view(-1, 1)
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * self.weight


CLASSES = {cls.__name__: cls for cls in (SoftmaxOverOtherGroups, KeepsTensor, KeepsEdgeTensor)}


def _conv(name: str) -> MessagePassing:
    torch.manual_seed(0)
    message = {**EXACT, **OF_ALL_EDGES}.get(name)
    if message is None:
        return CLASSES[name]().double()
    message.__name__ = 'message'  # PyG asks for it
    return type('Own', (SumConv,), {'message': message, '__module__': __name__})().double()


GRAPH = small_graph()


@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
@pytest.mark.parametrize('name', [*EXACT, *OF_ALL_EDGES, *CLASSES])
@on_ranks()
def test_messages_that_see_other_edges(data, name, mode):
    want = _conv(name)(GRAPH.x, GRAPH.edge_index)[data.n_id]
    assert_close(SARConv(_conv(name), mode=mode)(data.x, data.edge_index), want)


class UpdatesFromEdges(SumConv):
    def update(self, inputs: Tensor, x_j: Tensor) -> Tensor:
        return inputs + x_j.sum()


class OwnPropagate(SumConv):
    def propagate(self, edge_index: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return x[edge_index[0]].sum(0)


class OwnEdgeUpdater(SumConv):
    def edge_updater(self, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return edge_index


class OwnAggregate(SumConv):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return scatter(inputs, index, self.node_dim, dim_size, reduce='max')


REFUSED: dict[str, tuple[Callable[[], MessagePassing], str]] = {
    'update': (UpdatesFromEdges, "its 'update' reads 'x_j'"),
    'propagate': (OwnPropagate, "it overrides 'propagate'"),
    'edge_updater': (OwnEdgeUpdater, "it overrides 'edge_updater'"),
}


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', REFUSED)
def test_refused_at_construction(name, mode):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=f'cannot be wrapped: {words}'):
        SARConv(make(), mode=mode)
    with pytest.raises(ValueError, match=f"at '0' .*{words}"):
        DistributedDataParallel(torch.nn.ModuleList([make()]), mode=mode)


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@on_ranks(1, 3)
def test_own_aggregate(data, mode):
    found = SARConv(OwnAggregate(), mode=mode)(data.x, data.edge_index)
    assert_close(found, OwnAggregate()(GRAPH.x, GRAPH.edge_index)[data.n_id])


class UpToLargest(SumConv):
    def aggregate(self, inputs: Tensor, index: Tensor) -> Tensor:
        return torch.zeros(int(index.max()), 6).double().index_add(0, index.clamp(max=9), inputs)


@on_ranks()
def test_an_aggregate_of_fewer_nodes(data):
    """Its plain result would be taken for own rows."""
    with pytest.raises(ValueError, match=r"in what 'aggregate' of UpToLargest gives, 40 rows"):
        SARConv(UpToLargest())(data.x, data.edge_index)


class Against(SumConv):
    """Sums into a plain tensor, against the edges; keeps a number of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = 'target_to_source'

    def message(self, x_j: Tensor) -> Tensor:
        self.mean = x_j.detach().mean()
        return x_j

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return inputs.new_zeros(dim_size, 3).index_add(0, index, inputs)


def _two_types() -> HeteroData:
    data, generator = HeteroData(), torch.Generator().manual_seed(0)
    for name in 'ab':
        data[name].x = torch.randn(12, 3, generator=generator).double()
    data['a', 'to', 'b'].edge_index = torch.randint(12, (2, 40), generator=generator)
    return data


def _turned(data: HeteroData, conv: MessagePassing) -> Tensor:
    edges = data['a', 'to', 'b'].edge_index.flip(0)
    return conv((data['a'].x, data['b'].x), edges)


def _turned_on_ranks(root: str) -> Tensor:
    return pyg_sar.gather(_turned(pyg_sar.load_shard(root), SARConv(Against())))


def test_an_aggregate_into_plain_along_turned_edges(tmp_path):
    """Of two types with as many nodes each."""
    data, root = _two_types(), str(tmp_path / 'parts')
    pyg_sar.partition_graph(data, 2, root, method='random')
    for found in run_ranks(_turned_on_ranks, 2, root):
        assert_close(found, _turned(data, Against()))
