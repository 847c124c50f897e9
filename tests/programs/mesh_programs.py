"""Models of meshes: edge features from layer to layer, node rows read at both ends."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, weights
from torch import Tensor
from torch.nn import LayerNorm, Linear, Module, ModuleList, ReLU, Sequential
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

WIDTH = 5


def block(num_in: int, num_out: int = WIDTH) -> Sequential:
    return Sequential(
        Linear(num_in, WIDTH), ReLU(), Linear(WIDTH, num_out), LayerNorm(num_out)
    ).double()


class Processor(Module):
    """A layer of MeshGraphNet: edges by both ends, then nodes by the sum of their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.of_edge, self.of_node = block(3 * WIDTH), block(2 * WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        e = e + self.of_edge(torch.cat([x[src], x[dst], e], dim=-1))
        received = scatter(e, dst, dim=0, dim_size=x.size(0), reduce='sum')
        return x + self.of_node(torch.cat([x, received], dim=-1)), e


class MeshGraphNet(Module):
    """Encoder, 15 processors, decoder; `again` recomputes each processor in backward."""

    def __init__(self, again: bool, num_layers: int = 15) -> None:
        super().__init__()
        self.again = again
        self.nodes, self.edges = block(6), block(4)
        self.layers = ModuleList(Processor() for _ in range(num_layers))
        self.decoder = Sequential(Linear(WIDTH, WIDTH), ReLU(), Linear(WIDTH, 3)).double()

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h, e = self.nodes(x), self.edges(edge_attr)
        for layer in self.layers:
            if self.again and self.training:
                h, e = checkpoint(layer, h, edge_index, e, use_reentrant=False)
            else:
                h, e = layer(h, edge_index, e)
        out: Tensor = self.decoder(h)
        return out


def forecast(model: Module, data: Data, ddp: Ddp) -> Results:
    """Three steps towards other features, as the next step of a simulation."""
    model = ddp(model)
    target = data.x[:, :3] * 0.9

    def loss() -> Tensor:
        return F.mse_loss(model(data.x, data.edge_index, data.edge_attr), target)

    losses = descend(loss, model, 0.01)
    with torch.no_grad():
        out = model(data.x, data.edge_index, data.edge_attr)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


def mesh_graph_net(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return forecast(MeshGraphNet(again=False), data, ddp)


def mesh_graph_net_recomputed(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    return forecast(MeshGraphNet(again=True), data, ddp)


def a_new_x_in_every_step(data: Data, ddp: Ddp) -> Results:
    """A rollout: what the model gives is what it gets next."""
    torch.manual_seed(0)
    model = ddp(MeshGraphNet(again=False, num_layers=3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, losses = data.x, []
    for _ in range(3):
        optimizer.zero_grad()
        delta = model(x, data.edge_index, data.edge_attr)
        target = x[:, :3] * 0.9
        loss = F.mse_loss(x[:, :3] + delta, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        x = torch.cat([(x[:, :3] + delta).detach(), x[:, 3:]], dim=1)
    return {'losses': losses, 'x': x, 'weights': weights(model)}


class ConvOfNodesAndEdges(MessagePassing):
    """As anemoi's GraphConv: `aggregate` reads the edge_index and gives nodes and edges."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = block(3 * WIDTH)

    def forward(self, x: Tensor, edge_attr: Tensor, edge_index: Tensor, size: Any = None) -> Any:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr, size=size)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        made: Tensor = self.mlp(torch.cat([x_i, x_j, edge_attr], dim=1)) + edge_attr
        return made

    def aggregate(self, edges_new: Tensor, edge_index: Tensor, dim_size: Any = None) -> Any:
        out = scatter(edges_new, edge_index[1], dim=0, dim_size=dim_size, reduce='sum')
        return out, edges_new


def conv_of_nodes_and_edges(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)

    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.edges = block(6), block(4)
            self.convs = ModuleList(ConvOfNodesAndEdges() for _ in range(2))
            self.updates = ModuleList(block(2 * WIDTH) for _ in range(2))
            self.out = Linear(WIDTH, 3).double()

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            h, e = self.nodes(x), self.edges(edge_attr)
            for conv, update in zip(self.convs, self.updates, strict=True):
                received, e = conv(h, e, edge_index, size=(x.size(0), x.size(0)))
                h = h + update(torch.cat([h, received], dim=1))
            out: Tensor = self.out(h)
            return out

    return forecast(Net(), data, ddp)
