"""Models that compute on edges: edge MLPs, MetaLayer, interaction networks, edge classification."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, descend, mlp, weights
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, MetaLayer, SAGEConv
from torch_geometric.utils import scatter


def trained(data: Data, model: Module, lr: float = 0.1) -> Results:
    """Three steps of a model that takes edges with attributes, and its output."""

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, data.edge_attr)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index, data.edge_attr)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class EdgeMLP(Module):
    """Scores of edges from both ends and the attributes."""

    def __init__(self, num_out: int = 3) -> None:
        super().__init__()
        self.mlp = mlp(6 + 6 + 4, 8, num_out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        row, col = edge_index
        return self.mlp(torch.cat([x[row], x[col], edge_attr], dim=-1))


class EdgeModel(Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(6 + 6 + 4, 8, 5)

    def forward(
        self, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor
    ) -> Tensor:
        return self.mlp(torch.cat([src, dst, edge_attr], dim=1))


class NodeModel(Module):
    def __init__(self, num_edge: int = 5) -> None:
        super().__init__()
        self.mlp = mlp(6 + num_edge, 8, 3)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor
    ) -> Tensor:
        mean = scatter(edge_attr, edge_index[1], dim=0, dim_size=x.size(0), reduce='mean')
        return self.mlp(torch.cat([x, mean], dim=1))


class GlobalModel(Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(3 + 2, 4, 2)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor
    ) -> Tensor:
        return self.mlp(torch.cat([x.mean(dim=0, keepdim=True), u], dim=1))


def meta_layer(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.meta = MetaLayer(EdgeModel(), NodeModel())

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.meta(x, edge_index, edge_attr)[0]

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def meta_layer_with_global_model(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(MetaLayer(EdgeModel(), NodeModel(), GlobalModel()).double())
    u = torch.ones(1, 2, dtype=torch.float64)

    def loss_of() -> Tensor:
        x, e, out = model(data.x, data.edge_index, data.edge_attr, u)
        supervised = F.cross_entropy(x[data.train_mask], data.y[data.train_mask])
        return supervised + out.pow(2).sum() + e.pow(2).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


class Processor(Module):
    """A step of MeshGraphNets: edges and nodes with residuals."""

    def __init__(self, num: int = 8) -> None:
        super().__init__()
        self.edge, self.node = mlp(3 * num, num, num), mlp(2 * num, num, num)
        self.norm_e, self.norm_n = LayerNorm(num), LayerNorm(num)

    def forward(self, h: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        e = e + self.norm_e(self.edge(torch.cat([h[src], h[dst], e], dim=-1)))
        total = torch.zeros_like(h).index_add_(0, dst, e)
        return h + self.norm_n(self.node(torch.cat([h, total], dim=-1))), e


def mesh_graph_net(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.edges, self.out = mlp(6, 8, 8), mlp(4, 8, 8), Linear(8, 3)
            self.steps = ModuleList(Processor() for _ in range(3))

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            h, e = self.nodes(x), self.edges(edge_attr)
            for step in self.steps:
                h, e = step(h, e, edge_index)
            return self.out(h)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def interaction_network(data: Data, ddp: Ddp) -> Results:
    """Battaglia et al., 2016: relations from differences of the ends, both directions."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.relation, self.object = mlp(6 + 1 + 4, 8, 5), mlp(6 + 5, 8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            difference = x[edge_index[0]] - x[edge_index[1]]
            distance = difference.norm(dim=-1, keepdim=True)
            e = self.relation(torch.cat([difference, distance, edge_attr], dim=-1))
            effect = scatter(e, edge_index[1], 0, dim_size=x.shape[0], reduce='sum')
            effect = effect - scatter(e, edge_index[0], 0, dim_size=x.shape[0], reduce='sum')
            return self.object(torch.cat([x, effect], dim=-1))

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def equivariant_positions(data: Data, ddp: Ddp) -> Results:
    """EGNN: the first columns are positions, and they move."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.move = mlp(3 + 3 + 1, 8, 4), Linear(4, 1, bias=False)
            self.update = mlp(3 + 4, 8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            pos, h = x[:, :3], x[:, 3:]
            row, col = edge_index
            relative = pos[row] - pos[col]
            square = (relative**2).sum(dim=-1, keepdim=True)
            m = self.message(torch.cat([h[row], h[col], square], dim=-1))
            pos = pos + scatter(relative * self.move(m), col, 0, x.size(0), 'mean')
            h = self.update(torch.cat([h, scatter(m, col, 0, x.size(0))], dim=-1))
            return h + pos - pos.mean(dim=0)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()), lr=0.02)


def edge_batch_norm(data: Data, ddp: Ddp) -> Results:
    """BatchNorm1d over rows of edges."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.norm, self.out = Linear(16, 8), BatchNorm1d(8), Linear(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            row, col = edge_index
            e = self.norm(self.lin(torch.cat([x[row], x[col], edge_attr], dim=-1))).relu()
            return self.out(scatter(e, col, 0, dim_size=x.size(0), reduce='mean'))

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def edge_softmax_over_all(data: Data, ddp: Ddp) -> Results:
    """Attention of all edges of the graph among each other."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.lin = EdgeMLP(1), Linear(12, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            alpha = self.score(x, edge_index, edge_attr).softmax(dim=0)
            summary = (alpha * x[edge_index[0]]).sum(dim=0, keepdim=True)
            return self.lin(torch.cat([x, summary.expand(x.size(0), -1)], dim=-1))

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def learned_edge_weights(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = EdgeMLP(1)
            self.conv1, self.conv2 = GCNConv(6, 8), GCNConv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            weight = self.score(x, edge_index, edge_attr).sigmoid().view(-1)
            x = self.conv1(x, edge_index, weight).relu()
            return self.conv2(x, edge_index, weight)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def gated_by_similarity(data: Data, ddp: Ddp) -> Results:
    """Weights of messages are the cosine of the ends, shifted by its mean over all edges."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.conv = Linear(6, 6), GCNConv(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            h = self.lin(x)
            similar = F.cosine_similarity(h[edge_index[0]], h[edge_index[1]], dim=-1)
            gate = torch.sigmoid((similar - similar.mean()) / similar.std())
            return self.conv(h, edge_index, gate)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def attributes_summed_into_nodes(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv(10, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            extra = torch.zeros(x.size(0), edge_attr.size(1), dtype=x.dtype)
            extra.index_add_(0, edge_index[1], edge_attr)
            return self.conv(torch.cat([x, extra], dim=1), edge_index)

    torch.manual_seed(0)
    return trained(data, ddp(Model().double()))


def type_embeddings(data: Data, ddp: Ddp) -> Results:
    """An embedding of the type of every edge, added to what its source sends."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.lin = torch.nn.Embedding(3, 6), Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
            h = (x[edge_index[0]] + self.emb(edge_type)).relu()
            return self.lin(x + scatter(h, edge_index[1], 0, x.size(0)))

    torch.manual_seed(0)
    data.edge_attr = data.edge_type
    return trained(data, ddp(Model().double()), lr=0.02)
