"""Tensors of edges in another dimension than the first, in containers, or on the conv."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from alike import Wrap, as_one_process, assert_alike, take_step
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from pyg_sar.nn import call
from pyg_sar.nn.table_reads import TableReads

N, WIDTH = 30, 4
CUTS = {'equal': [i // 10 for i in range(N)], 'unequal': [min(i % 7, 2) for i in range(N)]}


class Batched(MessagePassing):
    """Weights ``[B, E]`` beside features ``[B, N, F]``, as in ASTGCN."""

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=torch.stack([x, 2 * x]), weight=weight)

    def message(self, x_j: Any, weight: Any) -> Any:
        return weight.unsqueeze(-1) * x_j


class Reduced(MessagePassing):
    """A number of all edges from ``[B, E]``: where parts have as many edges, no size tells."""

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j: Any, weight: Any) -> Any:
        return weight.mean() * x_j


class Kept(MessagePassing):
    """Weights that ``forward`` puts on the conv."""

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        self.kept = weight[0].view(-1, 1)
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Any) -> Any:
        return self.kept * x_j


class Held(MessagePassing):
    """Weights in a tuple, a list, a dict or a function."""

    def __init__(self, hold: Callable[[Any], Any], take: Callable[[Any], Any]) -> None:
        super().__init__()
        self.hold, self.take = hold, take

    def forward(self, x: Any, edge_index: Any, weight: Any) -> Any:
        return self.propagate(edge_index, x=x, held=self.hold(weight[0]))

    def message(self, x_j: Any, held: Any) -> Any:
        weight = self.take(held)
        return (weight.mean() + weight.view(-1, 1)) * x_j


class Mean(Held):
    """Of these the mean alone, which fits any number of edges."""

    def message(self, x_j: Any, held: Any) -> Any:
        return self.take(held).mean() * x_j


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    'tuple': (lambda w: (w, None), lambda held: held[0]),
    'list': (lambda w: [2.0, [w]], lambda held: held[1][0]),
    'dict': (lambda w: {'w': w}, lambda held: held['w']),
    'function': (lambda w: lambda: w, lambda held: held()),
}
KINDS: dict[str, Callable[[], MessagePassing]] = {
    **{kind.__name__: kind for kind in (Batched, Reduced, Kept)},
    **{f'Held, {name}': functools.partial(Held, *each) for name, each in HOLDERS.items()},
    **{f'Mean, {name}': functools.partial(Mean, *each) for name, each in HOLDERS.items()},
}


def _graph() -> Data:
    """Every node has four edges into it, so parts of as many nodes have as many edges."""
    draw = torch.Generator().manual_seed(0)
    src = torch.randint(N, (4 * N,), generator=draw)
    return Data(
        x=torch.randn(N, WIDTH, dtype=torch.float64, generator=draw),
        edge_index=torch.stack([src, torch.arange(N).repeat_interleave(4)]),
        edge_weight=torch.rand(4 * N, dtype=torch.float64, generator=draw),
    )


@pytest.mark.parametrize('cut', CUTS.values(), ids=CUTS)
@pytest.mark.parametrize('kind', KINDS)
@as_one_process(graph=_graph, ranks=(1, 3), tolerance=1e-12)
def test_as_plain_pyg(data: Data, wrap: Wrap, kind: str, cut: list[int]) -> list[Any]:
    x, weight = (t.clone().requires_grad_() for t in (data.x, data.edge_weight))
    found = []
    conv = wrap(KINDS[kind]())
    for factor in (1, 2):
        out = conv(x, data.edge_index, torch.stack([weight, factor * weight]))
        out.square().sum().backward()
        found += [out.detach(), x.grad.clone(), weight.grad.clone()]
    return found


# A message that reads rows of a table by ids of edges


class Relations(MessagePassing):
    """Weights of the relation of every edge, some counted from the end, and rows of a gate."""

    def __init__(self, aggr: str, ids: str = 'edge_type') -> None:
        super().__init__(aggr=aggr)
        generator = torch.Generator().manual_seed(0)
        made = torch.randn(3, 6, generator=generator, dtype=torch.float64)
        self.weight, self.gate = Parameter(made), Parameter(made[:, 0].sin())
        self.ids = ids

    def forward(self, x: Tensor, edge_index: Any, edge_type: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_type=edge_type)

    def message(self, x_j: Tensor, edge_type: Tensor) -> Tensor:
        ids = edge_type - 3 if self.ids == 'from the end' else edge_type
        weight = self.weight[ids] + self.weight[:, ids].t()[:, :1]
        return (x_j * weight * self.gate[ids].unsqueeze(-1)).tanh()


def run(data: Any, wrap: Any, aggr: str, ids: str) -> Any:
    return take_step(wrap(Relations(aggr, ids)), data, data.edge_type)


@pytest.mark.parametrize('ids', ['edge_type', 'from the end'])
@pytest.mark.parametrize('aggr', ['sum', 'max', 'median'])
def test_a_message(aggr: str, ids: str) -> None:
    with mock.patch.object(call, 'TableReads', wraps=TableReads) as reads:
        assert_alike(run, aggr, ids, ranks=(1, 3))
    assert reads.called


def test_what_is_read_otherwise() -> None:
    """Other indices, and tables without a gradient; ids that are not there are an error."""
    table, ids = Parameter(torch.randn(4, 2)), torch.tensor([3, 0, -1])
    plain = table[ids]
    with TableReads():
        assert table[ids].grad_fn.name() == 'IndexSelectBackward0'
        assert table[ids[:0]].shape == (0, 2)
        mask = torch.tensor([True, False, True, True])
        for index in (ids.view(-1, 1), mask, (ids, 0), 1, slice(2), None, [0, 2]):
            assert 'IndexSelect' not in table[index].grad_fn.name()
        assert table.detach()[ids].equal(plain.detach())
        assert table[ids].equal(plain)
        for wrong in (4, -5):
            with pytest.raises(IndexError):
                table[torch.tensor([wrong])]
