"""What a conv's own forward computes with the ids of nodes: exact, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, take_step
from other_module import out_degree
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import (
    assortativity,
    coalesce,
    contains_self_loops,
    degree,
    homophily,
    scatter,
    softmax,
    to_torch_csr_tensor,
    to_undirected,
)


class _Conv(MessagePassing):
    """Sums `x`, and what a function of the edges gives."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(aggr='add')
        self.function = function
        self.scale = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found = self.function(x * self.scale, edge_index)
        return self.propagate(edge_index, x=x) + (found if isinstance(found, Tensor) else 0.0)


def _sparse(x: Tensor, edge_index: Tensor) -> Tensor:
    values = torch.ones(edge_index.size(1), dtype=x.dtype)
    return torch.sparse_coo_tensor(edge_index, values, (x.size(0), x.size(0))) @ x


def _sparse_of_rows(x: Tensor, edge_index: Tensor) -> Tensor:
    row, col = edge_index
    values = torch.ones(row.numel(), dtype=x.dtype)
    return torch.sparse_coo_tensor(torch.stack([col, row]), values, (40, 40)) @ x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    'bincount': lambda x, e: torch.bincount(e[0]),
    'groups up to the largest': lambda x, e: torch.zeros(
        int(e[0].max()) + 1, dtype=x.dtype
    ).scatter_add_(0, e[0], x[e[0]][:, 0]),
    'largest of both rows': lambda x, e: int(e.max()) + 1,
    'scatter_add_': lambda x, e: torch.zeros(40, dtype=x.dtype).scatter_add_(
        0, e[0], x[e[0]][:, 0]
    ),
    'index_add': lambda x, e: x.index_add(0, e[0], x[e[0]]),
    'sparse_coo_tensor': _sparse,
    'sparse_coo_tensor of rows': _sparse_of_rows,
    'to_torch_csr_tensor': lambda x, e: to_torch_csr_tensor(e, size=(40, 40)) @ x.float(),
    'one_hot': lambda x, e: F.one_hot(e[0]).sum(0),
    'sort': lambda x, e: e[0].sort()[0][:9],
    'argsort': lambda x, e: torch.argsort(e[0], stable=True)[:9],
    'less than': lambda x, e: (e[0] < e[1]).double().mean(),
    'equal to a number': lambda x, e: (e[0] == 0).double().mean(),
    'equal to another row': lambda x, e: (e[0] == e[1].clone()).double(),
    'max': lambda x, e: e[0].max(),
    'unique': lambda x, e: e[0].unique(),
    'arithmetic': lambda x, e: e[0] * 40 + e[1],
    'as numbers': lambda x, e: e[0].double() / 40,
    'to a list': lambda x, e: torch.tensor(e[0].tolist()[:9]),
    'coalesce': lambda x, e: coalesce(e)[0],
    'homophily': lambda x, e: homophily(e, x[:, 0] > 0),
    'assortativity': lambda x, e: assortativity(e),
    'contains_self_loops': lambda x, e: float(contains_self_loops(e)),
    'degree in a helper module': lambda x, e: out_degree(e, x.size(0)),
    'undirected with attributes': lambda x, e: to_undirected(e, x[e[0]])[1],
}


class _Summed(_Conv):
    """Adds a number that is made of all that the function gives."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found = self.function(x * self.scale, edge_index)
        if isinstance(found, Tensor):
            found = found.double().cos().sum()
        return self.propagate(edge_index, x=x) + found


@pytest.mark.filterwarnings('ignore:Sparse')
@pytest.mark.parametrize('name', FUNCTIONS)
@as_one_process(tolerance=1e-12)
def test_exact(data: Any, wrap: Wrap, name: str) -> Tensor:
    return wrap(_Summed(FUNCTIONS[name]))(data.x, data.edge_index).detach()


def _of_selected(x: Tensor, edge_index: Tensor) -> Tensor:
    """Rows of some edges: read, reduced where they start, and where they end."""
    row, col = edge_index
    is_kept = x[row][:, 0] < x[col][:, 1]
    row, col = row[is_kept], col[is_kept]
    alpha = softmax(x[row].sum(-1), row, num_nodes=x.size(0))
    out = scatter(alpha.view(-1, 1) * x[col], row, 0, x.size(0), reduce='sum')
    return out / degree(row, x.size(0), dtype=x.dtype).clamp(min=1).view(-1, 1)


class _Stacked(_Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index
        is_kept = x[row][:, 0] < x[col][:, 1]
        edge_index = torch.stack([row[is_kept], col[is_kept]], dim=0)
        return self.propagate(edge_index, x=x * self.scale)


class _Undirected(_Conv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        both = to_undirected(edge_index, num_nodes=x.size(0))
        read = scatter(x[both[0]], both[1], 0, x.size(0), reduce='mean')
        return self.propagate(both, x=x * self.scale) * read


CONVS: dict[str, Callable[[], MessagePassing]] = {
    'selected': lambda: _Conv(_of_selected),
    'stacked': lambda: _Stacked(_of_selected),
    'undirected': lambda: _Undirected(_of_selected),
}


@pytest.mark.parametrize('name', CONVS)
@as_one_process(ranks=(1, 2, 3), parts=6, tolerance=1e-12)
def test_as_on_the_whole_graph(data: Any, wrap: Wrap, name: str) -> list[Any]:
    return take_step(wrap(CONVS[name]()), data)
