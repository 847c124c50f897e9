"""Convs with the arguments they are called with, for parity with one-process PyG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, aggr, conv
from torch_geometric.utils import softmax as renamed_softmax


@dataclass(frozen=True)
class Case:
    """A conv and the edge arguments it takes; `nodes` is how often x is passed."""

    make: Callable[[], torch.nn.Module]
    edges: tuple[str, ...] = ()
    nodes: int = 1


class TwoSoftmaxes(MessagePassing):
    """A softmax of a softmax, the second one used non-linearly, and a learnable tensor."""

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.query = torch.nn.Parameter(torch.empty(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        logits = (x_j * self.query).sum(-1)
        first = renamed_softmax(logits, index, num_nodes=size_i)
        second = renamed_softmax(first * (x_i * x_j).sum(-1), index, num_nodes=size_i)
        return second.pow(2).view(-1, 1) * x_j + first.view(-1, 1)


class OwnUpdate(MessagePassing):
    """Reads x in update, weights by an argument that is neither of nodes nor of edges."""

    def __init__(self) -> None:
        super().__init__(aggr='mean')
        self.lin = torch.nn.Linear(16, 5)
        self.scale = torch.nn.Parameter(torch.empty(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, scale=self.scale.exp())

    def message(self, x_j: Tensor, scale: Tensor) -> Tensor:
        return (x_j * scale).tanh()

    def update(self, inputs: Tensor, x: Tensor) -> Tensor:
        return self.lin(torch.cat([inputs, x], dim=-1))


class Stacked(MessagePassing):
    """Two propagates in a forward, nodes in dimension 1."""

    def __init__(self) -> None:
        super().__init__(aggr='add', node_dim=1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        h = torch.stack([x, x.sin()])
        h = self.propagate(edge_index, h=h, edge_weight=edge_weight)
        return self.propagate(edge_index, h=h.tanh(), edge_weight=edge_weight).sum(0)

    def message(self, h_j: Tensor, edge_weight: Tensor) -> Tensor:
        return h_j * edge_weight.view(1, -1, 1)


def _mlp(num_in: int, num_out: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 7), torch.nn.Tanh(), torch.nn.Linear(7, num_out)
    )


_DEGREES = torch.tensor([1, 2, 5, 9, 12, 9, 7, 3])

CASES: dict[str, Case] = {
    # Messages are x_j or w * x_j: the linear path.
    'SAGE': Case(lambda: conv.SAGEConv(8, 6)),
    'SAGE-sum': Case(lambda: conv.SAGEConv(8, 6, aggr='sum', project=True, normalize=True)),
    'SAGE-mean-and-sum': Case(lambda: conv.SAGEConv(8, 6, aggr=['mean', 'sum'])),
    'GCN': Case(lambda: conv.GCNConv(8, 6)),
    'GCN-weight': Case(lambda: conv.GCNConv(8, 6, improved=True), ('edge_weight',)),
    'GCN-no-norm': Case(lambda: conv.GCNConv(8, 6, normalize=False), ('edge_weight',)),
    'GIN': Case(lambda: conv.GINConv(_mlp(8, 6), train_eps=True)),
    'GraphConv': Case(lambda: conv.GraphConv(8, 6, aggr='mean'), ('edge_weight',)),
    'APPNP': Case(lambda: conv.APPNP(3, 0.1)),
    'SG': Case(lambda: conv.SGConv(8, 6, K=2)),
    'SSG': Case(lambda: conv.SSGConv(8, 6, alpha=0.1, K=2)),
    'TAG': Case(lambda: conv.TAGConv(8, 6), ('edge_weight',)),
    'Cheb': Case(lambda: conv.ChebConv(8, 6, 3), ('edge_weight',)),
    'Cheb-rw': Case(lambda: conv.ChebConv(8, 6, 3, normalization='rw')),
    'ARMA': Case(lambda: conv.ARMAConv(8, 6, num_stacks=2, num_layers=2), ('edge_weight',)),
    'MixHop': Case(lambda: conv.MixHopConv(8, 6)),
    'LG': Case(lambda: conv.LGConv()),
    'GCN2': Case(lambda: conv.GCN2Conv(8, 0.1, 0.5, 1), ('edge_weight',), nodes=2),
    'ClusterGCN': Case(lambda: conv.ClusterGCNConv(8, 6)),
    'MF': Case(lambda: conv.MFConv(8, 6)),
    'Simple': Case(lambda: conv.SimpleConv('mean', combine_root='cat')),
    'GatedGraph': Case(lambda: conv.GatedGraphConv(8, 2), ('edge_weight',)),
    'RGCN': Case(lambda: conv.RGCNConv(8, 6, 3, num_bases=2), ('edge_type',)),
    'RGCN-blocks': Case(lambda: conv.RGCNConv(8, 6, 3, num_blocks=2), ('edge_type',)),
    'WLContinuous': Case(lambda: conv.WLConvContinuous(), ('edge_weight',)),
    # Any other message: the replay path.
    'GINE': Case(lambda: conv.GINEConv(_mlp(8, 6), edge_dim=4), ('edge_attr',)),
    'CG': Case(lambda: conv.CGConv(8, 4), ('edge_attr',)),
    'NN': Case(lambda: conv.NNConv(8, 6, _mlp(4, 48), aggr='mean'), ('edge_attr',)),
    'FeaSt': Case(lambda: conv.FeaStConv(8, 6, heads=2)),
    'ResGated': Case(lambda: conv.ResGatedGraphConv(8, 6, edge_dim=4), ('edge_attr',)),
    'LE': Case(lambda: conv.LEConv(8, 6), ('edge_weight',)),
    'FA': Case(lambda: conv.FAConv(8), nodes=2),
    'GMM': Case(lambda: conv.GMMConv(8, 6, 4, 2), ('edge_attr',)),
    'PDN': Case(lambda: conv.PDNConv(8, 6, 4, 5), ('edge_attr',)),
    'FiLM': Case(lambda: conv.FiLMConv(8, 6, 3), ('edge_type',)),
    'DNA': Case(lambda: _DNA()),
    'EdgeConv-sum': Case(lambda: conv.EdgeConv(_mlp(16, 6), aggr='add')),
    'PNA-sum-mean': Case(
        lambda: conv.PNAConv(
            8, 6, ['mean', 'sum'], ['identity', 'amplification', 'linear'], _DEGREES, edge_dim=4
        ),
        ('edge_attr',),
    ),
    'GEN-sum': Case(
        lambda: conv.GENConv(8, 6, aggr='add', norm='layer', edge_dim=4), ('edge_attr',)
    ),
    # Extrema, ties included (ReLU makes them), and second moments.
    'EdgeConv-max': Case(lambda: conv.EdgeConv(_mlp(16, 6))),
    'EdgeConv-ties': Case(
        lambda: conv.EdgeConv(torch.nn.Sequential(torch.nn.Linear(16, 6), torch.nn.ReLU()))
    ),
    'SAGE-max': Case(lambda: conv.SAGEConv(8, 6, aggr='max', project=True)),
    'GraphConv-min': Case(lambda: conv.GraphConv(8, 6, aggr='min'), ('edge_weight',)),
    'SAGE-var': Case(lambda: conv.SAGEConv(8, 6, aggr='var')),
    'SAGE-many': Case(
        lambda: conv.SAGEConv(8, 6, aggr=['max', 'min', 'mean', 'std', 'sum', 'var'])
    ),
    'PNA': Case(
        lambda: conv.PNAConv(
            8, 6, ['mean', 'min', 'max', 'std'], ['identity', 'attenuation'], _DEGREES, edge_dim=4
        ),
        ('edge_attr',),
    ),
    # Aggregations with steps of their own around the reductions.
    'EG': Case(lambda: conv.EGConv(8, 8, aggregators=['sum', 'max', 'std', 'symnorm'])),
    'GEN-softmax': Case(lambda: conv.GENConv(8, 6, learn_t=True, edge_dim=4), ('edge_attr',)),
    'GEN-powermean': Case(lambda: conv.GENConv(8, 6, aggr='powermean', learn_p=True)),
    'SAGE-mul': Case(lambda: conv.SAGEConv(8, 6, aggr='mul')),
    'SAGE-attentional': Case(
        lambda: conv.SAGEConv(8, 6, aggr=aggr.AttentionalAggregation(_mlp(8, 1), _mlp(8, 8)))
    ),
    'SAGE-deep-sets': Case(
        lambda: conv.SAGEConv(8, 6, aggr=aggr.DeepSetsAggregation(_mlp(8, 5), _mlp(5, 8)))
    ),
    'SAGE-variance-preserving': Case(
        lambda: conv.SAGEConv(8, 6, aggr=aggr.VariancePreservingAggregation())
    ),
    'SAGE-attn': Case(
        lambda: conv.SAGEConv(
            8,
            6,
            aggr=['softmax', 'mean', 'std'],
            aggr_kwargs={
                'aggrs_kwargs': [{'learn': True}, {}, {}],
                'mode': 'attn',
                'mode_kwargs': {'in_channels': 8, 'out_channels': 8, 'num_heads': 2},
            },
        )
    ),
    # Aggregations that need all messages of a node at once: the gather path.
    'SAGE-median': Case(lambda: conv.SAGEConv(8, 6, aggr='median')),
    'SAGE-median-and-max': Case(lambda: conv.SAGEConv(8, 6, aggr=['median', 'max'])),
    'FastRGCN': Case(lambda: conv.FastRGCNConv(8, 6, 3, num_bases=2), ('edge_type',)),
    'RGAT-scaled': Case(lambda: conv.RGATConv(8, 6, 3, mod='scaled', heads=2), ('edge_type',)),
    # Softmax over in-edges.
    'GAT': Case(lambda: conv.GATConv(8, 5, heads=3)),
    'GAT-edge': Case(
        lambda: conv.GATConv(8, 5, heads=3, edge_dim=4, concat=False, residual=True),
        ('edge_attr',),
    ),
    'GATv2': Case(lambda: conv.GATv2Conv(8, 5, heads=3, edge_dim=4), ('edge_attr',)),
    'Transformer': Case(lambda: conv.TransformerConv(8, 5, heads=2, edge_dim=4), ('edge_attr',)),
    'Transformer-beta': Case(lambda: conv.TransformerConv(8, 5, heads=2, beta=True)),
    'AGNN': Case(lambda: conv.AGNNConv()),
    'General-attention': Case(
        lambda: conv.GeneralConv(8, 6, 4, attention=True, heads=2), ('edge_attr',)
    ),
    'RGAT': Case(lambda: conv.RGATConv(8, 6, 3, heads=2), ('edge_type',)),
    'RGAT-across': Case(
        lambda: conv.RGATConv(8, 6, 3, heads=2, attention_mechanism='across-relation'),
        ('edge_type',),
    ),
    'PointTransformer': Case(lambda: _PointTransformer()),
    # A user's own.
    'TwoSoftmaxes': Case(TwoSoftmaxes),
    'OwnUpdate': Case(OwnUpdate),
    'Stacked': Case(Stacked, ('edge_weight',)),
}


class _DNA(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv.DNAConv(8, heads=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(torch.stack([x, x.sin(), x.cos()], dim=1), edge_index)


class _PointTransformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv.PointTransformerConv(8, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, F.normalize(x[:, :3]), edge_index)


def make(name: str) -> torch.nn.Module:
    """The case's conv, float64, every parameter drawn from a seed of the name."""
    module = CASES[name].make().double()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for parameter in module.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values * 0.4)
    return module


def run(name: str, module: torch.nn.Module, data: Data) -> tuple[Tensor, dict[str, Tensor]]:
    """Output, and the inputs that take a gradient."""
    case = CASES[name]
    x = data.x.detach().clone().requires_grad_()
    inputs = {'x': x}
    kwargs = {}
    for edge in case.edges:
        value = data[edge]
        if value.is_floating_point():
            value = inputs[edge] = value.detach().clone().requires_grad_()
        kwargs[edge] = value
    return module(*[x] * case.nodes, data.edge_index, **kwargs), inputs
