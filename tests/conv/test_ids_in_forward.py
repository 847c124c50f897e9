"""What a conv's own forward computes with the ids of nodes: exact, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from other_module import out_degree
from ranks import run_ranks
from small_graphs import assemble, assert_close, cut, small_graph
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

import pyg_sar
from pyg_sar import SARConv


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

REFUSED = {'to_torch_csr_tensor'}
"""What a rule refuses; all others are exact."""


class _Summed(_Conv):
    """Adds a number that is made of all that the function gives."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found = self.function(x * self.scale, edge_index)
        if isinstance(found, Tensor):
            found = found.double().cos().sum()
        return self.propagate(edge_index, x=x) + found


def _of_functions(root: Path, is_local: bool) -> dict[str, Any]:
    data, found = pyg_sar.load_shard(root), {}
    given = pyg_sar.local(data) if is_local else data
    for name, function in FUNCTIONS.items():
        try:
            out = SARConv(_Summed(function))(given.x, given.edge_index)
        except ValueError as error:
            found[name] = str(error)
        else:
            found[name] = pyg_sar.local(data.n_id), pyg_sar.local(out).detach()
    return found


@pytest.mark.filterwarnings('ignore:Sparse')
@pytest.mark.parametrize('is_local', [False, True])
def test_exact_or_refused_by_name(is_local: bool, tmp_path: Path) -> None:
    graph = small_graph()
    answers = run_ranks(_of_functions, 3, cut(graph, 3, tmp_path / 'parts'), is_local)
    for name, function in FUNCTIONS.items():
        found = [answer[name] for answer in answers]
        if name in REFUSED:
            assert all('of rows that are spread over the ranks' in each for each in found), found
            continue
        assert not any(isinstance(each, str) for each in found), (name, found)
        assert_close(assemble(found, 40), _Summed(function)(graph.x, graph.edge_index).detach())


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


def _run(root: Path, name: str) -> Any:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = SARConv(CONVS[name]())
    x = data.x.detach().requires_grad_()
    out = conv(x, data.edge_index)
    (out * (data.n_id.view(-1, 1) % 5 + 1) / 8).sum().backward()
    gradients = [parameter.grad for parameter in conv.parameters()]
    return data.n_id, out.detach(), x.grad, gradients


@pytest.mark.parametrize('world_size', [1, 2, 3])
@pytest.mark.parametrize('name', CONVS)
def test_as_on_the_whole_graph(name: str, world_size: int, tmp_path: Path) -> None:
    graph, conv = small_graph(), CONVS[name]()
    x = graph.x.detach().requires_grad_()
    want = conv(x, graph.edge_index)
    (want * (torch.arange(40).view(-1, 1) % 5 + 1) / 8).sum().backward()
    results = run_ranks(_run, world_size, cut(graph, 6, tmp_path / 'parts'), name)
    assert_close(assemble([(n_id, out) for n_id, out, _, _ in results], 40), want.detach())
    assert_close(assemble([(n_id, grad) for n_id, _, grad, _ in results], 40), x.grad)
    for i, parameter in enumerate(conv.parameters()):
        assert_close(sum(gradients[i] for *_, gradients in results), parameter.grad)
