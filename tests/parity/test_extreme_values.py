"""NaN, infinities and ties, in what is reduced along edges: places, values, gradients as in PyG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, as_one_process, assert_alike, parallel
from small_graphs import small_graph
from sum_conv import SumConv
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import scatter

WIDTH = 6
NAN, INF = float('nan'), float('inf')
KINDS = ('NaN', 'infinite', 'ties')


class _Distances(SumConv):
    """Differences of infinities are NaN, in a message that sets none of its rows to zero."""

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j - x_i


class _InBetween(SumConv):
    """A maximum inside of the message, so that its chunks are those of destinations."""

    def message(self, x_j: Tensor, index: Tensor, dim_size: int) -> Tensor:
        return x_j - scatter(x_j, index, 0, dim_size, 'max')[index]


class _Across(SumConv):
    """A message that looks at all edges at once."""

    def message(self, x_j: Tensor) -> Tensor:
        return x_j * x_j.size(0) / len(x_j)


PARTS = ['mean', 'min', 'max', 'std', 'sum']

CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    **{f'Simple {aggr}': lambda aggr=aggr: pyg.SimpleConv(aggr) for aggr in ('max', 'min', 'mean')},
    'Simple mul': lambda: pyg.SimpleConv('mul'),
    'Simple, parts': lambda: pyg.SimpleConv(PARTS, combine_root='cat'),
    'differences, max': lambda: _Distances('max'),
    'differences, min': lambda: _Distances('min'),
    'inside, max': lambda: _InBetween('max'),
    'across, max': lambda: _Across('max'),
    'across, min': lambda: _Across('min'),
    'SAGE max': lambda: pyg.SAGEConv(WIDTH, 4, aggr='max'),
    'Graph min': lambda: pyg.GraphConv(WIDTH, 4, aggr='min'),
    'Edge': lambda: pyg.EdgeConv(torch.nn.Linear(2 * WIDTH, 4)),
    'PNA': lambda: pyg.PNAConv(WIDTH, 4, PARTS, ['identity', 'amplification'], torch.arange(9)),
    'GEN': lambda: pyg.GENConv(WIDTH, 4, aggr=['softmax', 'max']),
    'GAT': lambda: pyg.GATConv(WIDTH, 4, heads=2),
    'GAT max': lambda: pyg.GATConv(WIDTH, 4, heads=2, aggr='max'),
    'GATv2': lambda: pyg.GATv2Conv(WIDTH, 4, heads=2),
    'Transformer': lambda: pyg.TransformerConv(WIDTH, 4, heads=2),
    'AGNN': lambda: pyg.AGNNConv(),
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


def _of_conv(data: Data, wrap: Wrap, name: str, dtype: torch.dtype, mode: Any) -> dict[str, Any]:
    """Of every kind of features: out, the gradient of x, those of parameters."""
    found = {}
    for kind in KINDS:
        torch.manual_seed(1)
        conv = parallel(CONVS[name]().to(dtype), wrap, mode=mode)
        x = _features(kind, data.x.to(dtype)).requires_grad_()
        out = conv(x, data.edge_index)
        weights = torch.linspace(-1, 2, out.numel(), dtype=dtype).view(out.shape)
        (out * weights).sum().backward()
        found[kind] = [out.detach(), x.grad, [p.grad for p in conv.parameters()]]
    return found


@pytest.mark.parametrize(
    ('ranks', 'dtype', 'mode'),
    [
        ((1, 3), torch.float64, 'sequential'),
        ((3,), torch.float32, 'sequential_no_remat'),
        ((3,), torch.float64, 'one_shot'),
    ],
)
@pytest.mark.parametrize('name', CONVS)
def test_along_edges(name: str, ranks: tuple[int, ...], dtype: torch.dtype, mode: str) -> None:
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    assert_alike(_of_conv, name, dtype, mode, ranks=ranks, tolerance=tolerance, equal_nan=True)


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


@pytest.mark.parametrize('name', OVER_ROWS)
@as_one_process(ranks=(1, 3), tolerance=1e-12, equal_nan=True)
def test_over_rows(data: Data, wrap: Wrap, name: str) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        x = _features(kind, data.x).requires_grad_()
        start = _features(kind, small_graph().x)[:4].requires_grad_()
        out = OVER_ROWS[name](x, start, data.y)
        (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum().backward()
        found[kind] = [out.detach(), x.grad, start.grad]
    return found
