"""Never silently wrong: what block by block or rank by rank would be wrong raises, on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_ranks
from small_graphs import assemble, assert_close, attempt, cut
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree, scatter, softmax

import pyg_sar
from pyg_sar import SARConv, wrap


class DividesByDegree(SumConv):
    def message(self, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return x_j / degree(index, size_i)[index].view(-1, 1)


class TakesMaximum(SumConv):
    def message(self, x_j: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return x_j - scatter(x_j, index, 0, dim_size, reduce='max')[index]


class OwnSoftmax(SumConv):
    def message(self, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        weight = x_j.exp()
        total = weight.new_zeros(size_i, x_j.size(1)).index_add(0, index, weight)
        return weight / total[index]


class CountsEdges(SumConv):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j / torch.bincount(index)[index].view(-1, 1)


class ReadsIdsAsNumbers(SumConv):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j * index.view(-1, 1)


class ReadsIdsAsList(SumConv):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j * (1 + len(set(index.tolist())))


class ReadsLargestId(SumConv):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j * float(index.max())


class ReadsDestinationsByTheirOtherName(SumConv):
    def message(self, x_j: Tensor, edge_index_i: Tensor) -> Tensor:
        return x_j / degree(edge_index_i)[edge_index_i].view(-1, 1)


class SoftmaxOfTheLastDimension(SumConv):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return softmax(x_j.t(), index, dim=1).t()


class SoftmaxOverOtherGroups(SumConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        group = torch.arange(edge_index.size(1)) % 3
        return self.propagate(edge_index, x=x, group=group)

    def message(self, x_j: Tensor, group: Tensor) -> Tensor:
        return softmax(x_j, group, num_nodes=3)


class CountsMessages(SumConv):
    def message(self, x_j: Tensor, index: Tensor) -> Tensor:
        return x_j / index.numel()


class SubtractsMean(SumConv):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j - x_j.mean(0)


class SoftmaxOfAllEdges(SumConv):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j.softmax(dim=0)


class FunctionalBatchNorm(SumConv):
    def message(self, x_j: Tensor) -> Tensor:
        return F.batch_norm(x_j, None, None, training=True)


class NumbersEdges(SumConv):
    def message(self, x_j: Tensor) -> Tensor:
        return x_j * torch.arange(x_j.size(0)).view(-1, 1)


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


class ReadsSources(SumConv):
    def message(self, x_j: Tensor, edge_index_j: Tensor) -> Tensor:
        return x_j * edge_index_j.view(-1, 1)


EXACT: dict[str, type[MessagePassing]] = {
    cls.__name__: cls
    for cls in (
        DividesByDegree,
        TakesMaximum,
        OwnSoftmax,
        CountsEdges,
        ReadsDestinationsByTheirOtherName,
        SoftmaxOfTheLastDimension,
    )
}


MESSAGES: dict[str, type[MessagePassing]] = {
    cls.__name__: cls
    for cls in (
        ReadsIdsAsNumbers,
        ReadsIdsAsList,
        ReadsLargestId,
        SoftmaxOverOtherGroups,
        KeepsTensor,
        CountsMessages,
        ReadsSources,
    )
}


ROW_STATISTICS: dict[str, type[MessagePassing]] = {
    cls.__name__: cls
    for cls in (SubtractsMean, SoftmaxOfAllEdges, FunctionalBatchNorm, NumbersEdges)
}


def _conv(name: str) -> MessagePassing:
    torch.manual_seed(0)
    classes = {**EXACT, **MESSAGES, **ROW_STATISTICS, 'KeepsEdgeTensor': KeepsEdgeTensor}
    return classes[name]().double()


def _forward(name: str, root: str, mode: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    return attempt(SARConv(_conv(name), mode=mode), data.x, data.edge_index)


def test_a_kept_edge_tensor(root):
    outcomes = run_ranks(_forward, 3, 'KeepsEdgeTensor', root, 'sequential')
    assert all('Error: ' in outcome for outcome in outcomes), outcomes


def _values(name: str, root: str, mode: str) -> tuple[Tensor, Tensor]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    with torch.no_grad():
        return data.n_id, SARConv(_conv(name), mode=mode)(data.x, data.edge_index)


@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
@pytest.mark.parametrize('name', EXACT)
def test_messages_that_see_all_in_edges(graph, root, name, mode):
    """With all in-edges of a node at hand they are exact."""
    want = _conv(name)(graph.x, graph.edge_index).detach()
    assert_close(assemble(run_ranks(_values, 3, name, root, mode), 40), want)


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', [*ROW_STATISTICS, *MESSAGES])
def test_messages_that_see_other_edges(graph, root, name, mode):
    """They run on rows of the edges of all ranks."""
    assert run_ranks(_forward, 3, name, root, mode) == ['no error'] * 3
    want = _conv(name)(graph.x, graph.edge_index)
    assert_close(assemble(run_ranks(_values, 3, name, root, mode), 40), want)


class ReadsSize(SumConv):
    def message(self, x_j: Tensor, size_j: int) -> Tensor:
        return x_j / size_j


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


class Inherits(OwnPropagate):
    pass


REFUSED: dict[str, tuple[Callable[[], MessagePassing], str]] = {
    'size': (ReadsSize, "its 'message' reads 'size_j'"),
    'update': (UpdatesFromEdges, "its 'update' reads 'x_j'"),
    'propagate': (OwnPropagate, "it overrides 'propagate'"),
    'inherited propagate': (Inherits, "it overrides 'propagate'"),
    'edge_updater': (OwnEdgeUpdater, "it overrides 'edge_updater'"),
}


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
@pytest.mark.parametrize('name', REFUSED)
def test_refused_at_construction(name, mode):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=f'cannot be wrapped: {words}'):
        SARConv(make(), mode=mode)
    with pytest.raises(ValueError, match=f"at '0' cannot run on a partitioned graph: {words}"):
        wrap(torch.nn.ModuleList([make()]), mode=mode)


@pytest.mark.parametrize('mode', ['sequential', 'one_shot'])
def test_own_aggregate(graph, tmp_path, mode):
    data = pyg_sar.local(pyg_sar.load_shard(cut(graph, 3, tmp_path / 'parts')))
    found = SARConv(OwnAggregate(), mode=mode)(data.x, data.edge_index)
    assert_close(found, OwnAggregate()(graph.x, graph.edge_index)[data.n_id])
