"""Layers on a cut graph as functions of tensors that every rank has: torch can check these.

The tensors are all nodes' features, all edges' values and all parameters. A layer takes its rows of
them, and value and gradients are the same on all ranks. ``torch.autograd.gradcheck``, called on all
ranks, thus perturbs the same entry everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, conv, norm

import pyg_sar
from pyg_sar.nn.averager import average_gradients

NUM_FEATURES, NUM_EDGE_FEATURES = 3, 2


class Curved(MessagePassing):
    """Neither a sum of rows nor a weight, with a learnable tensor inside."""

    def __init__(self) -> None:
        super().__init__(aggr='sum')
        self.scale = torch.nn.Parameter(torch.empty(NUM_FEATURES))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return (x_j * self.scale).tanh()


class WithNorm(torch.nn.Module):
    """A conv, a norm over all nodes, and one more."""

    def __init__(self, between: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.norm = conv.SAGEConv(NUM_FEATURES, 4), between
        self.second = conv.GCNConv(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x, edge_index)).tanh(), edge_index)


def _mlp(num_in: int, num_out: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 4), torch.nn.Tanh(), torch.nn.Linear(4, num_out)
    )


@dataclass(frozen=True)
class Layer:
    """A module, and what it is given beside x and edge_index."""

    make: Callable[[], torch.nn.Module]
    edge: str | None = None
    mode: str = 'sequential'


F_, E_ = NUM_FEATURES, NUM_EDGE_FEATURES
LAYERS = {
    'linear': Layer(lambda: conv.GraphConv(F_, 2, aggr='sum')),
    'mean': Layer(lambda: conv.SAGEConv(F_, 2)),
    'narrow': Layer(lambda: conv.SAGEConv(F_, 1)),
    'normalised': Layer(lambda: conv.GCNConv(F_, 2)),
    'weighted': Layer(lambda: conv.GraphConv(F_, 2), 'edge_weight'),
    'normalised weights': Layer(lambda: conv.GCNConv(F_, 2), 'edge_weight'),
    'attention': Layer(lambda: conv.GATConv(F_, 2, heads=2)),
    'attention with edge features': Layer(
        lambda: conv.GATConv(F_, 2, heads=2, edge_dim=E_), 'edge_attr'
    ),
    'attention v2': Layer(lambda: conv.GATv2Conv(F_, 2, heads=2, edge_dim=E_), 'edge_attr'),
    'softmax in one pass': Layer(lambda: conv.TransformerConv(F_, 2, edge_dim=E_), 'edge_attr'),
    'replay': Layer(Curved),
    'edge network': Layer(lambda: conv.NNConv(F_, 2, _mlp(E_, 2 * F_), aggr='mean'), 'edge_attr'),
    'edge features': Layer(lambda: conv.GINEConv(_mlp(F_, 2), edge_dim=E_), 'edge_attr'),
    'max': Layer(lambda: conv.SAGEConv(F_, 2, aggr='max')),
    'std': Layer(lambda: conv.SAGEConv(F_, 2, aggr='std')),
    'several': Layer(lambda: conv.SAGEConv(F_, 2, aggr=['min', 'var', 'mean', 'softmax'])),
    'median': Layer(lambda: conv.SAGEConv(F_, 2, aggr='median')),
    'against the edges': Layer(
        lambda: conv.GATConv(F_, 2, edge_dim=E_, flow='target_to_source'), 'edge_attr'
    ),
    'batch norm': Layer(lambda: WithNorm(torch.nn.BatchNorm1d(4))),
    'graph norm': Layer(lambda: WithNorm(norm.GraphNorm(4))),
    'pair norm': Layer(lambda: WithNorm(norm.PairNorm())),
    'linear, kept': Layer(lambda: conv.GraphConv(F_, 2), mode='sequential_no_remat'),
    'attention, kept': Layer(lambda: conv.GATConv(F_, 2, heads=2), mode='sequential_no_remat'),
    'std, kept': Layer(lambda: conv.SAGEConv(F_, 2, aggr='std'), mode='sequential_no_remat'),
    'linear at once': Layer(lambda: conv.GraphConv(F_, 2), mode='one_shot'),
    'attention at once': Layer(lambda: conv.GATConv(F_, 2, heads=2), mode='one_shot'),
    'std at once': Layer(lambda: conv.SAGEConv(F_, 2, aggr='std'), mode='one_shot'),
}
"""One of every path, and of every mode that computes it by another code."""


def replicated_graph() -> Data:
    """14 nodes, no two alike; a node without in-edges, a self loop, a repeated edge; float64."""
    generator = torch.Generator().manual_seed(5)
    edges = torch.randint(13, (2, 30), generator=generator)
    edges = torch.cat([edges, edges[:, :1], torch.tensor([[3], [3]])], dim=1)
    edges = edges[:, torch.argsort(edges[1] * 14 + edges[0])]  # as a part has them
    num_edges = edges.size(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    return Data(
        x=normal(14, NUM_FEATURES),
        edge_index=edges,
        edge_attr=normal(num_edges, NUM_EDGE_FEATURES),
        edge_weight=normal(num_edges).abs() + 0.5,
        num_nodes=14,
    )


class Replicated:
    """A layer as a function of tensors that all ranks have.

    Args:
        name: One of `LAYERS`.
        root: The partition folder of `replicated_graph`; None for one process and the whole graph.

    Attributes:
        inputs: Where to check it: all nodes' features, all edges' values if it takes any, and every
            parameter. Leaves.
    """

    def __init__(self, name: str, root: str | None) -> None:
        layer, graph = LAYERS[name], replicated_graph()
        torch.manual_seed(4)
        self.model = layer.make().double()
        inputs = [graph.x] if layer.edge is None else [graph.x, graph[layer.edge]]
        self.num_data = len(inputs)
        # Zeros, as biases begin with, would be kinks of a maximum.
        generator = torch.Generator().manual_seed(6)
        inputs += [
            0.7 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for p in self.model.parameters()
        ]
        self.data = graph if root is None else pyg_sar.load_shard(root)
        self.is_cut, self.edge = root is not None, layer.edge
        if root is not None:
            self.model = pyg_sar.DistributedDataParallel(self.model, mode=layer.mode)
        self.names = [key for key, _ in self.model.named_parameters()]
        self.inputs = tuple(value.requires_grad_() for value in inputs)
        if self.is_cut:
            average_gradients(self.inputs)  # as DistributedDataParallel does
        generator = torch.Generator().manual_seed(7)
        self.factors = torch.randn(graph.num_nodes, 4, generator=generator, dtype=torch.float64)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """A number; the same on all ranks, as are the gradients of `inputs` (collective)."""
        rows = inputs[: self.num_data]
        if self.is_cut:
            like = self.data.x, self.data[self.edge] if self.edge else None
            rows = [torch.zeros_like(a) + b for a, b in zip(like, rows, strict=False)]
        args = rows[0], self.data.edge_index, *rows[1:]
        parameters = dict(zip(self.names, inputs[self.num_data :], strict=True))
        buffers = {key: value.clone() for key, value in self.model.named_buffers()}
        out = functional_call(self.model, {**parameters, **buffers}, args)
        value = (out.square() * self.factors[:, : out.size(1)]).sum()
        # What a layer does not read still takes part.
        return value + sum(0 * value.sum() for value in inputs)
