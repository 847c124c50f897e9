"""Convs on the graph of all ranks: rows in, rows out, equal to one process of plain PyG."""

from __future__ import annotations

import pytest
import torch
from few import few
from graphs import awkward_graph as graph
from parity_cases import CASES, make, run
from ranks import run_as_threads
from torch import Tensor
from torch_geometric.nn import MessagePassing

import pyg_sar
from pyg_sar.rows.rows import Rows


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    data = graph()
    part = torch.arange(data.num_nodes) % 7 % 3  # unequal, and in no order
    root = tmp_path_factory.mktemp('convs') / 'parts'
    pyg_sar.partition_graph(data, 3, root, method=part)
    return str(root)


def _on_rank(name: str, root: str, *, is_parallel: bool) -> dict[str, Tensor]:
    data = pyg_sar.load_shard(root)
    data = data.apply(lambda t: t.double() if t.is_floating_point() else t)
    model = make(name).double()
    model = pyg_sar.DistributedDataParallel(model).module if is_parallel else pyg_sar.wrap(model)
    out, inputs = run(name, model, data)
    assert isinstance(out, Rows)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    (out * grad).sum().backward()
    found = {'out': pyg_sar.gather(out.detach())}
    found |= {key: pyg_sar.gather(value.grad) for key, value in inputs.items()}
    return found | {n: _grad(p) for n, p in model.named_parameters()}


def _grad(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad


@pytest.mark.parametrize(('world_size', 'is_parallel'), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize('name', few(CASES))
def test_equals_plain_pyg(folder: str, name: str, world_size: int, is_parallel: bool) -> None:
    model = make(name).double()
    out, inputs = run(name, model, graph())
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    (out * grad).sum().backward()
    expected = {'out': out.detach(), **{key: value.grad for key, value in inputs.items()}}
    expected |= {n: _grad(p) for n, p in model.named_parameters()}
    for found in run_as_threads(_on_rank, world_size, name, folder, is_parallel=is_parallel):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-10, msg=key)


class AllNodes(MessagePassing):
    """A conv that nobody knows: its forward looks at all nodes, at edges and at its own output."""

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.lin, self.query = torch.nn.Linear(8, 8), torch.nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x) - x.mean(0)
        row, col = edge_index
        weight = (x[row] * x[col]).sum(-1)
        degree = x.new_zeros(x.size(0)).scatter_add_(0, col, torch.ones_like(weight))
        weight = weight / (1 + degree[row]) / weight.abs().max()
        attention = (x * self.query).softmax(dim=0)
        out = self.propagate(edge_index, x=x, weight=weight)
        return out + attention * (attention.t() @ out).sum() / x.size(0)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return x_j * weight.view(-1, 1)


def _own_conv(root: str | None) -> dict[str, Tensor]:
    data = graph() if root is None else pyg_sar.load_shard(root)
    torch.manual_seed(0)
    model: torch.nn.Module = AllNodes().double()
    if root is not None:
        model = pyg_sar.DistributedDataParallel(model)
    x = data.x.clone().requires_grad_()
    out = model(x, data.edge_index)
    out.square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    return {f'{i}': pyg_sar.gather(t.detach()) for i, t in enumerate([out, x.grad, *grads])}


@pytest.mark.parametrize('world_size', [1, 3])
def test_a_conv_that_nobody_knows(folder: str, world_size: int) -> None:
    expected = _own_conv(None)
    for found in run_as_threads(_own_conv, world_size, folder):
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-10, msg=key)
