"""A message that reads rows of a table by ids of edges: those of plain PyG, with every gradient."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from alike import assert_alike, take_step
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.nn import MessagePassing

from pyg_sar.nn import call
from pyg_sar.nn.table_reads import TableReads


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
