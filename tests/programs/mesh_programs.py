"""Models that hand rows of edges on: meshes, interaction networks, MetaLayer, learned weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from shared import Ddp, Results, mlp, named, parts, programs
from three_steps import trained
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList, ReLU, Sequential
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, MetaLayer, SAGEConv
from torch_geometric.utils import scatter

WIDTH = 5


def block(num_in: int, num_out: int = WIDTH) -> Sequential:
    return Sequential(
        Linear(num_in, WIDTH), ReLU(), Linear(WIDTH, num_out), LayerNorm(num_out)
    ).double()


@parts(of_edge=(block, 3 * WIDTH), of_node=(block, 2 * WIDTH))
def processor(m: Any, x: Tensor, edge_index: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """A layer of MeshGraphNet: edges by both ends, then nodes by the sum of their edges."""
    src, dst = edge_index
    e = e + m.of_edge(torch.cat([x[src], x[dst], e], dim=-1))
    received = scatter(e, dst, dim=0, dim_size=x.size(0), reduce='sum')
    return x + m.of_node(torch.cat([x, received], dim=-1)), e


class MeshGraphNet(Module):
    """Encoder, 15 processors, decoder; `again` recomputes each processor in backward."""

    def __init__(self, again: bool, num_layers: int = 15) -> None:
        super().__init__()
        self.again = again
        self.nodes, self.edges = block(6), block(4)
        self.layers = ModuleList(processor() for _ in range(num_layers))
        self.decoder = Sequential(Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, 3)).double()

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        for layer in self.layers:
            if self.again and self.training:
                h, e = checkpoint(layer, h, edge_index, e, use_reentrant=False)
            else:
                h, e = layer(h, edge_index, e)
        return self.decoder(h)


class ConvOfNodesAndEdges(MessagePassing):
    """As anemoi's GraphConv: `aggregate` reads the edge_index and gives nodes and edges."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = block(3 * WIDTH)

    def forward(self, x: Tensor, edge_attr: Tensor, edge_index: Tensor, size: Any = None) -> Any:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr, size=size)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        return self.mlp(torch.cat([x_i, x_j, edge_attr], dim=1)) + edge_attr

    def aggregate(self, edges_new: Tensor, edge_index: Tensor, dim_size: Any = None) -> Any:
        out = scatter(edges_new, edge_index[1], dim=0, dim_size=dim_size, reduce='sum')
        return out, edges_new


@parts(
    nodes=(block, 6),
    edges=(block, 4),
    convs=lambda: ModuleList(ConvOfNodesAndEdges() for _ in range(2)),
    updates=lambda: ModuleList(block(2 * WIDTH) for _ in range(2)),
    out=lambda: Linear(WIDTH, 3).double(),
)
def conv_of_nodes_and_edges(m: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
    h, e = m.nodes(x), m.edges(edge_attr)
    for conv, update in zip(m.convs, m.updates, strict=True):
        received, e = conv(h, e, edge_index, size=(x.size(0), x.size(0)))
        h = h + update(torch.cat([h, received], dim=1))
    return m.out(h)


@parts(
    lin=(Linear, 16, 8),
    norm=(BatchNorm1d, 8),
    score=(Linear, 8, 1),
    conv=(SAGEConv, 10, 8),
    out=(Linear, 14, 3),
)
def norm_of_edges(m: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
    """A batch norm and a softmax over the rows of all edges; what edges add to nodes."""
    row, col = edge_index
    e = m.norm(m.lin(torch.cat([x[row], x[col], edge_attr], dim=-1))).relu()
    summary = (m.score(e).softmax(dim=0) * x[row]).sum(dim=0, keepdim=True)
    extra = torch.zeros(x.size(0), edge_attr.size(1), dtype=x.dtype)
    extra.index_add_(0, col, edge_attr)
    h = scatter(e, col, 0, dim_size=x.size(0), reduce='mean')
    h = h + m.conv(torch.cat([x, extra], dim=1), edge_index)
    return m.out(torch.cat([h, summary.expand(x.size(0), -1)], dim=-1))


@parts(mlp=(mlp, 6 + 6 + 4, 8, 5))
def edge_model(m: Any, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Any, batch: Any) -> Tensor:
    return m.mlp(torch.cat([src, dst, edge_attr], dim=1))


@parts(mlp=(mlp, 6 + 5, 8, 3))
def node_model(m: Any, x: Tensor, edge_index: Tensor, e: Tensor, u: Any, batch: Any) -> Tensor:
    mean = scatter(e, edge_index[1], dim=0, dim_size=x.size(0), reduce='mean')
    return m.mlp(torch.cat([x, mean], dim=1))


@parts(mlp=(mlp, 3 + 2, 4, 2))
def global_model(m: Any, x: Tensor, edge_index: Tensor, e: Tensor, u: Tensor, batch: Any) -> Tensor:
    return m.mlp(torch.cat([x.mean(dim=0, keepdim=True), u], dim=1))


def on_edges(data: Data, ddp: Ddp, make: Callable[[], Module]) -> Results:
    return trained(data, ddp, make, data.edge_attr, lr=0.02)


PROGRAMS = programs(on_edges, named(conv_of_nodes_and_edges, norm_of_edges)) | programs(
    on_edges,
    {
        'mesh_graph_net': lambda: MeshGraphNet(again=False),
        'mesh_graph_net_recomputed': lambda: MeshGraphNet(again=True, num_layers=4),
    },
)


def meta_layer(data: Data, ddp: Ddp) -> Results:
    """With and without a model of the whole graph."""

    @parts(
        meta=lambda: MetaLayer(edge_model(), node_model(), global_model()),
        plain=lambda: MetaLayer(edge_model(), node_model()),
    )
    def net(m: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        u = x.new_ones(1, 2)
        h, e, u = m.meta(x, edge_index, edge_attr, u)
        return h + m.plain(x, edge_index, edge_attr)[0] + u.sum() + e.pow(2).mean()

    return trained(data, ddp, net, data.edge_attr)
