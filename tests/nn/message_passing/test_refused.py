"""Never silently wrong: what block by block or rank by rank would be wrong raises, on all ranks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, cut_of, parallel, take_step
from few import few
from on_ranks import on_ranks
from ranks import run_as_threads
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree, softmax
from two_types import two_types

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv, gather

TWO_TYPES = functools.partial(two_types, (12, 12), (3, 3), 40, turned=False)


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


class Sources(SumConv):
    def message(self, x_j: Tensor, edge_index_j: Tensor) -> Tensor:
        return x_j * edge_index_j.view(-1, 1)


class OtherName(SumConv):
    def message(self, x_j: Tensor, edge_index_i: Tensor) -> Tensor:
        return x_j / degree(edge_index_i)[edge_index_i].view(-1, 1)


CLASSES = [SoftmaxOverOtherGroups, KeepsTensor, KeepsEdgeTensor, Sources, OtherName]


@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat', 'one_shot']))
@pytest.mark.parametrize('make', CLASSES)
@as_one_process(ranks=(3, 1), tolerance=1e-12)
def test_messages_that_see_other_edges(
    data: Any, wrap: Wrap, make: type[SumConv], mode: Any
) -> list[Any]:
    return take_step(parallel(make().double(), wrap, mode=mode), data)


class UpdatesFromEdges(SumConv):
    def update(self, inputs: Tensor, x_j: Tensor) -> Tensor:
        return inputs + x_j.sum()


class OwnPropagate(SumConv):
    def propagate(self, edge_index: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return x[edge_index[0]].sum(0)


class OwnEdgeUpdater(SumConv):
    def edge_updater(self, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        return edge_index


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


class UpToLargest(SumConv):
    def aggregate(self, inputs: Tensor, index: Tensor) -> Tensor:
        return torch.zeros(int(index.max()), 6).double().index_add(0, index.clamp(max=9), inputs)


@on_ranks(by='threads')
def test_an_aggregate_of_fewer_nodes(data):
    """Its plain result would be taken for own rows."""
    with pytest.raises(ValueError, match=r"in what 'aggregate' of UpToLargest gives, 40 rows"):
        SARConv(UpToLargest())(data.x, data.edge_index)


class Against(SumConv):
    """Sums into a plain tensor, against the edges; keeps a number of all of them."""

    def __init__(self) -> None:
        super().__init__(flow='target_to_source')

    def message(self, x_j: Tensor) -> Tensor:
        self.mean = x_j.detach().mean()
        return x_j

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return inputs.new_zeros(dim_size, 3).index_add(0, index, inputs)


@as_one_process(graph=TWO_TYPES, cut='random', ranks=(2,), tolerance=1e-12)
def test_an_aggregate_into_plain_along_turned_edges(data: HeteroData, wrap: Wrap) -> Tensor:
    edges = data['a', 'to', 'b'].edge_index.flip(0)
    return wrap(Against())((data['a'].x, data['b'].x), edges)


class Open(MessagePassing):
    """PyG does not compile its propagate, which takes pairs of arguments by the flow."""

    def forward(self, x: Any, edge_index: Tensor, **more: Any) -> Tensor:
        return self.propagate(edge_index, x=x, **more)


def _other_end(root: str) -> None:
    data, conv = pyg_sar.load_shard(root), SARConv(Open(flow='target_to_source'))
    (a, b), edge_index = (data['a'].x, data['b'].x), data['a', 'to', 'b'].edge_index.flip(0)
    words = "expected rows of nodes of type 'a' at 'x_j' of Open (got those of nodes of type 'b')"
    with pytest.raises(ValueError, match=re.escape(words)):
        conv((a, b), edge_index)
    edges = TWO_TYPES()['a', 'to', 'b'].edge_index
    whole = Open(flow='target_to_source')(tuple(map(gather, (b, a))), edges.flip(0))
    torch.testing.assert_close(gather(conv((b, a), edge_index)), whole)


def test_rows_of_the_other_end() -> None:
    run_as_threads(_other_end, 2, cut_of(TWO_TYPES, 2, 'random'))
