"""Features in every layout of memory: columns with a step, transposed, expanded, within others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike
from few import few
from torch_geometric.data import Data
from torch_geometric.nn import conv, models, norm

N, IN, OUT = 23, 6, 4

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    'one of the last dimension': lambda x: x[:, :, 1],
    'every other column': lambda x: x.flatten(1)[:, : 2 * IN : 2],
    'some columns from an odd one on': lambda x: x.flatten(1)[:, 1 : 1 + IN],
    'a transposed copy': lambda x: x[:, :, 0].t().contiguous().t(),
    'one column expanded': lambda x: x[:, :1, 0].expand(-1, IN),
    'a moved dimension': lambda x: x.movedim(0, 1)[:, :, 0].t(),
    'a column split off': lambda x: x.flatten(1).chunk(4, dim=1)[1],
}

LAYERS: dict[str, Callable[[], Any]] = {
    'SAGE': lambda: conv.SAGEConv(IN, OUT),
    'SAGE max': lambda: conv.SAGEConv(IN, OUT, aggr='max'),
    'Graph': lambda: conv.GraphConv(IN, OUT),
    'GCN': lambda: conv.GCNConv(IN, OUT),
    'GIN': lambda: conv.GINConv(torch.nn.Linear(IN, OUT)),
    'GAT': lambda: conv.GATConv(IN, OUT),
    'TAG': lambda: conv.TAGConv(IN, OUT),
    'SG': lambda: conv.SGConv(IN, OUT, K=2),
    'Cheb': lambda: conv.ChebConv(IN, OUT, 3),
    'APPNP': lambda: conv.APPNP(2, 0.1),
    'Simple': lambda: conv.SimpleConv(),
    'LG': lambda: conv.LGConv(),
    'Edge': lambda: conv.EdgeConv(torch.nn.Linear(2 * IN, OUT)),
    'PNA': lambda: conv.PNAConv(IN, OUT, ['mean', 'std'], ['identity'], torch.tensor([1, 2, 3])),
    'Transformer': lambda: conv.TransformerConv(IN, OUT),
    'two layers': lambda: models.GraphSAGE(IN, 5, 2, OUT, norm='BatchNorm'),
    'BatchNorm': lambda: OfX(norm.BatchNorm(IN)),
    'GraphNorm': lambda: OfX(norm.GraphNorm(IN)),
    'LayerNorm': lambda: OfX(norm.LayerNorm(IN)),
    'PairNorm': lambda: OfX(norm.PairNorm()),
    'InstanceNorm': lambda: OfX(norm.InstanceNorm(IN)),
    'Dropout': lambda: OfX(torch.nn.Dropout(0)),
}


class OfX(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.layer(x)


def _graph() -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, IN, 4, dtype=torch.float64, generator=draw)
    return Data(x=x, edge_index=torch.randint(N - 2, (2, 90), generator=draw), num_nodes=N)


def _results(data: Any, wrap: Wrap, name: str) -> dict[str, list[Any]]:
    """Outputs twice, as what is known of raw features is used at the second time; gradients."""
    found = {}
    for layout, view in LAYOUTS.items():
        torch.manual_seed(0)
        layer = wrap(LAYERS[name]().double())
        leaf = data.x.detach().clone().requires_grad_()
        outs = [layer(view(x), data.edge_index) for x in (data.x, data.x, leaf)]
        sum(out.square().mean() for out in outs).backward()
        grads = [leaf.grad, *(each.grad for each in layer.parameters())]
        found[layout] = [*(out.detach() for out in outs), *grads]
    return found


@pytest.mark.parametrize('name', few(LAYERS))
def test_features_in_any_layout(name: str) -> None:
    cut = [i % 5 % 3 for i in range(N)]
    assert_alike(_results, name, graph=_graph, cut=cut, ranks=(1, 3), tolerance=1e-11)
