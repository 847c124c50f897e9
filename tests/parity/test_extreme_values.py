"""NaN, infinities and ties, in what is reduced along edges: places, values, gradients as in PyG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_ranks import on_ranks
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import (
    AGNNConv,
    EdgeConv,
    GATConv,
    GATv2Conv,
    GENConv,
    GraphConv,
    MessagePassing,
    PNAConv,
    SAGEConv,
    SimpleConv,
    TransformerConv,
)
from torch_geometric.utils import scatter

import pyg_sar

WIDTH = 6
NAN, INF = float('nan'), float('inf')


class _Distances(MessagePassing):
    """Differences of infinities are NaN, in a message that sets none of its rows to zero."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j - x_i


class _InBetween(MessagePassing):
    """A maximum inside of the message, so that its chunks are those of destinations."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return x_j - scatter(x_j, index, 0, dim_size, 'max')[index]


class _Across(MessagePassing):
    """A message that looks at all edges at once."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * x_j.size(0) / len(x_j)


PARTS = ['mean', 'min', 'max', 'std', 'sum']

CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    **{f'Simple {aggr}': lambda aggr=aggr: SimpleConv(aggr) for aggr in ('max', 'min', 'mean')},
    'Simple mul': lambda: SimpleConv('mul'),
    'Simple, parts': lambda: SimpleConv(PARTS, combine_root='cat'),
    'differences, max': lambda: _Distances('max'),
    'differences, min': lambda: _Distances('min'),
    'inside, max': lambda: _InBetween('max'),
    'across, max': lambda: _Across('max'),
    'across, min': lambda: _Across('min'),
    'SAGE max': lambda: SAGEConv(WIDTH, 4, aggr='max'),
    'Graph min': lambda: GraphConv(WIDTH, 4, aggr='min'),
    'Edge': lambda: EdgeConv(torch.nn.Linear(2 * WIDTH, 4)),
    'PNA': lambda: PNAConv(WIDTH, 4, PARTS, ['identity', 'amplification'], torch.arange(9)),
    'GEN': lambda: GENConv(WIDTH, 4, aggr=['softmax', 'max']),
    'GAT': lambda: GATConv(WIDTH, 4, heads=2),
    'GAT max': lambda: GATConv(WIDTH, 4, heads=2, aggr='max'),
    'GATv2': lambda: GATv2Conv(WIDTH, 4, heads=2),
    'Transformer': lambda: TransformerConv(WIDTH, 4, heads=2),
    'AGNN': lambda: AGNNConv(),
}


def _features(kind: str, x: Tensor) -> Tensor:
    x = x.clone()
    if kind == 'NaN':
        x[4, 1] = x[9, 2] = x[0, 0] = x[30, 3] = NAN
    elif kind == 'infinite':
        x[4, 1], x[9, 2], x[11, 2], x[30, 0] = INF, -INF, INF, -INF
        x[:, 5] = -INF
    elif kind == 'ties':
        x = (2 * x).round().relu()  # many zeros
        x[:, 3] = -x[:, 3]
    return x


def _run(conv: torch.nn.Module, kind: str, data: Data, dtype: torch.dtype) -> dict[str, Tensor]:
    x = _features(kind, data.x.to(dtype)).requires_grad_()
    out = conv(x, data.edge_index)
    weights = torch.linspace(-1, 2, out.numel(), dtype=dtype).view(out.shape)
    (out * weights).sum().backward()
    gradients = {name: p.grad for name, p in conv.named_parameters() if p.grad is not None}
    return {'out': out.detach(), 'x': x.grad, **gradients}


def _compare(data: Data, name: str, dtype: torch.dtype, **options: Any) -> list[str]:
    differences = []
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for kind in ('NaN', 'infinite', 'ties'):
        torch.manual_seed(1)
        plain = CONVS[name]().to(dtype)
        torch.manual_seed(1)
        model = pyg_sar.DistributedDataParallel(CONVS[name]().to(dtype), **options)
        wanted = _run(plain, kind, small_graph(), dtype)
        found = _run(model, kind, data, dtype)
        for (key, want), got in zip(wanted.items(), found.values(), strict=True):
            try:
                torch.testing.assert_close(
                    pyg_sar.gather(got), want, rtol=tolerance, atol=tolerance, equal_nan=True
                )
            except AssertionError as error:
                differences.append(f'{name}, {kind}, {key}: {error}')
    return differences


@pytest.mark.parametrize(
    ('world_size', 'dtype', 'mode'),
    [
        (1, torch.float64, 'sequential'),
        (3, torch.float64, 'sequential'),
        (3, torch.float32, 'sequential_no_remat'),
        (3, torch.float64, 'one_shot'),
    ],
)
@on_ranks()
def test_along_edges(data: Data, world_size: int, dtype: torch.dtype, mode: Any) -> None:
    """Elementwise: out, the gradient of x, those of parameters."""
    differences = [each for name in CONVS for each in _compare(data, name, dtype, mode=mode)]
    assert not differences, '\n'.join(differences)


def _into(x: Tensor, start: Tensor, y: Tensor, reduce: str, include_self: bool) -> Tensor:
    index = y.view(-1, 1).expand(-1, WIDTH)
    return start.scatter_reduce(0, index, x, reduce, include_self=include_self)


OVER_ROWS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    'amax': lambda x, start, y: x.amax(0),
    'amin': lambda x, start, y: x.amin(0),
    'max of all': lambda x, start, y: x.max(),
    'min of all': lambda x, start, y: x.min(),
    'scatter': lambda x, start, y: scatter(x, y, 0, 4, 'max'),
    'into zeros': lambda x, start, y: _into(x, 0 * start, y, 'amax', True),
    'into ties': lambda x, start, y: _into(x, start, y, 'amin', True),
    'beside ties': lambda x, start, y: _into(x, start, y, 'amax', False),
}


def _over_rows(name: str, kind: str, data: Data) -> list[Tensor]:
    x = _features(kind, data.x).requires_grad_()
    start = _features(kind, small_graph().x)[:4].requires_grad_()
    out = OVER_ROWS[name](x, start, data.y)
    (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), x.grad] + ([] if start.grad is None else [start.grad])


@pytest.mark.parametrize('name', OVER_ROWS)
@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks()
def test_over_rows(data: Data, world_size: int, name: str) -> None:
    for kind in ('NaN', 'infinite', 'ties'):
        wanted, found = (_over_rows(name, kind, graph) for graph in (small_graph(), data))
        for want, got in zip(wanted, found, strict=True):
            torch.testing.assert_close(
                pyg_sar.gather(got), want, rtol=1e-12, atol=1e-12, equal_nan=True, msg=kind
            )
