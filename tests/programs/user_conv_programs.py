"""Convs of users: statistics in message, update and aggregate, norms in MLPs, shared layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList, Parameter, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GENConv,
    GINConv,
    GINEConv,
    GraphNorm,
    MessagePassing,
    NNConv,
    PNAConv,
    SAGEConv,
    TransformerConv,
)
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter, softmax


def trained(data: Data, ddp: Ddp, make: type[Module], lr: float = 0.05) -> Results:
    """Three steps of a model of the whole data, and its output in evaluation."""
    torch.manual_seed(0)
    model = ddp(make().double())

    def loss_of() -> Tensor:
        out = model(data)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class OneConv(Module):
    """A conv of 6 channels, a linear layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = self.make(), Linear(8, 3)

    def make(self) -> Module:
        raise NotImplementedError

    def forward(self, data: Data) -> Tensor:
        return self.lin(self.conv(data.x, data.edge_index).relu())


def norm_of_messages(data: Data, ddp: Ddp) -> Results:
    """A batch norm of all messages."""

    class NormOfMessages(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.lin, self.bn = Linear(12, 8), BatchNorm1d(8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x)

        def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return self.bn(self.lin(torch.cat([x_i, x_j - x_i], dim=-1))).relu()

    class Model(OneConv):
        def make(self) -> Module:
            return NormOfMessages()

    return trained(data, ddp, Model)


def crystal_conv(data: Data, ddp: Ddp) -> Results:
    """Gates and cores of CGCNN, each with a norm over the edges, a norm over nodes after them."""

    class CrystalConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.full, self.bn1 = Linear(16, 12), BatchNorm1d(12)
            self.bn2 = BatchNorm1d(6)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            out = self.propagate(edge_index, x=x, edge_attr=edge_attr)
            return F.softplus(x + self.bn2(out))

        def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
            gate, core = self.bn1(self.full(torch.cat([x_i, x_j, edge_attr], -1))).chunk(2, dim=-1)
            return gate.sigmoid() * F.softplus(core)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleList([CrystalConv() for _ in range(2)])
            self.lin = Linear(6, 3)

        def forward(self, data: Data) -> Tensor:
            x = data.x
            for conv in self.convs:
                x = conv(x, data.edge_index, data.edge_attr)
            return self.lin(x)

    return trained(data, ddp, Model)


def own_aggregate_with_a_temperature(data: Data, ddp: Ddp) -> Results:
    class OwnAggregateWith(MessagePassing):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.t = Linear(6, 8), Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j: Tensor) -> Tensor:
            return x_j

        def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
            alpha = softmax(inputs * self.t, index, num_nodes=dim_size)
            return scatter(inputs * alpha, index, dim=0, dim_size=dim_size, reduce='sum')

    class Model(OneConv):
        def make(self) -> Module:
            return OwnAggregateWith()

    return trained(data, ddp, Model)


def own_aggregate_of_mean_and_deviation(data: Data, ddp: Ddp) -> Results:
    class OwnAggregateOf(MessagePassing):
        def __init__(self) -> None:
            super().__init__()
            self.pre, self.post = Linear(6, 8), Linear(16, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.pre(x))

        def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
            mean = scatter(inputs, index, 0, dim_size, reduce='mean')
            square = scatter(inputs * inputs, index, 0, dim_size, reduce='mean')
            std = ((square - mean * mean).relu() + 1e-5).sqrt()
            return torch.cat([mean, std], dim=-1)

        def update(self, aggr_out: Tensor) -> Tensor:
            return self.post(aggr_out)

    class Model(OneConv):
        def make(self) -> Module:
            return OwnAggregateOf()

    return trained(data, ddp, Model)


def own_aggregate_by_scatter_reduce(data: Data, ddp: Ddp) -> Results:
    """torch's own scatter_reduce, with rows that nothing reaches."""

    class OwnAggregateBy(MessagePassing):
        def __init__(self) -> None:
            super().__init__()
            self.lin = Linear(6, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x), size=(x.size(0), x.size(0)))

        def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
            out = inputs.new_zeros(dim_size, inputs.size(-1))
            index = index.unsqueeze(-1).expand_as(inputs)
            return out.scatter_reduce(0, index, inputs, reduce='amax', include_self=False)

    class Model(OneConv):
        def make(self) -> Module:
            return OwnAggregateBy()

    return trained(data, ddp, Model)


def update_standardised_by_all_nodes(data: Data, ddp: Ddp) -> Results:
    class UpdateStandardisedBy(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='mean')
            self.lin, self.root = Linear(6, 8), Linear(6, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x)

        def message(self, x_j: Tensor) -> Tensor:
            return self.lin(x_j)

        def update(self, aggr_out: Tensor, x: Tensor) -> Tensor:
            out = aggr_out + self.root(x)
            return (out - out.mean(dim=0)) / (out.std(dim=0) + 1e-5)

    class Model(OneConv):
        def make(self) -> Module:
            return UpdateStandardisedBy()

    return trained(data, ddp, Model)


def degree_normalised_in_the_conv(data: Data, ddp: Ddp) -> Results:
    """The tutorial's conv, target to source, self loops by hand, the norm as an argument."""

    class DegreeNormalisedIn(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', flow='target_to_source')
            self.lin = Linear(6, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            edge_index, _ = remove_self_loops(edge_index)
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edge_index
            deg = degree(row, x.size(0), dtype=x.dtype)
            deg_inv_sqrt = deg.pow(-0.5)
            deg_inv_sqrt[deg_inv_sqrt == float('inf')] = 0
            norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
            return self.propagate(edge_index, x=self.lin(x), norm=norm)

        def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
            return norm.view(-1, 1) * x_j

    class Model(OneConv):
        def make(self) -> Module:
            return DegreeNormalisedIn()

    return trained(data, ddp, Model)


def running_mean_of_degrees(data: Data, ddp: Ddp) -> Results:
    """A buffer that forward of the conv keeps in training, as PNA's authors have it."""

    class RunningMeanOf(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='sum')
            self.lin = Linear(6, 8)
            self.register_buffer('mean_degree', torch.ones(1))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            deg = degree(edge_index[1], x.size(0), dtype=x.dtype)
            if self.training:
                with torch.no_grad():
                    self.mean_degree.mul_(0.9).add_(0.1 * (deg + 1).log().mean())
            scale = (deg + 1).log() / self.mean_degree
            return self.propagate(edge_index, x=self.lin(x)) * scale.view(-1, 1)

    class Model(OneConv):
        def make(self) -> Module:
            return RunningMeanOf()

    return trained(data, ddp, Model)


def edge_attention_kept_on_self(data: Data, ddp: Ddp) -> Results:
    """Message writes what it found to self, for a loss of the model."""

    class EdgeAttentionKept(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', node_dim=0)
            self.lin, self.att = Linear(6, 8), Linear(16, 1)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
            alpha = F.leaky_relu(self.att(torch.cat([x_i, x_j], -1)), 0.2)
            alpha = softmax(alpha, index, num_nodes=size_i)
            self._alpha = alpha
            return alpha * x_j

    class Model(OneConv):
        def make(self) -> Module:
            return EdgeAttentionKept()

    torch.manual_seed(0)
    model = Model().double()
    conv = model.conv
    model = ddp(model)

    def loss_of() -> Tensor:
        out = model(data)
        entropy = -(conv._alpha * conv._alpha.clamp(min=1e-9).log()).mean()
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask]) + 0.1 * entropy

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def gin_with_norms_in_its_mlp(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = ModuleList()
            for num in (6, 8):
                mlp = Sequential(
                    Linear(num, 8), BatchNorm1d(8), ReLU(), Linear(8, 8), BatchNorm1d(8), ReLU()
                )
                self.convs.append(GINConv(mlp, train_eps=True))
            self.lin = Linear(8, 3)

        def forward(self, data: Data) -> Tensor:
            x = data.x
            for conv in self.convs:
                x = conv(x, data.edge_index)
            return self.lin(x)

    return trained(data, ddp, Model)


def gine_with_a_frozen_norm(data: Data, ddp: Ddp) -> Results:
    """The norm in the MLP is in evaluation while the model trains."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            mlp = Sequential(Linear(6, 8), BatchNorm1d(8), ReLU(), Linear(8, 8))
            self.conv = GINEConv(mlp, edge_dim=4)
            self.lin = Linear(8, 3)

        def train(self, mode: bool = True) -> Module:
            super().train(mode)
            self.conv.nn[1].eval()
            return self

        def forward(self, data: Data) -> Tensor:
            return self.lin(self.conv(data.x, data.edge_index, data.edge_attr))

    return trained(data, ddp, Model)


def norms_frozen_after_a_step(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    mlp = Sequential(Linear(8, 16), BatchNorm1d(16), ReLU(), Linear(16, 8))

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin1, self.conv, self.lin2 = Linear(6, 8), GINConv(mlp), Linear(8, 3)

        def forward(self, data: Data) -> Tensor:
            return self.lin2(self.conv(self.lin1(data.x), data.edge_index))

    model = ddp(Model().double())
    losses = []
    for step in range(3):
        model.train()
        if step:
            for module in model.modules():
                if isinstance(module, BatchNorm1d):
                    module.eval()
                    module.weight.requires_grad_(False)
        losses += descend(
            lambda: F.cross_entropy(model(data)[data.train_mask], data.y[data.train_mask]),
            [p for p in model.parameters() if p.requires_grad],
            steps=1,
        )
    return {'losses': losses, 'weights': weights(model)}


def deeper_gen_with_norms(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge, self.node = Linear(4, 8), Linear(6, 8)
            self.convs = ModuleList(
                [
                    GENConv(8, 8, aggr='softmax', t=1.0, learn_t=True, num_layers=2, norm='batch'),
                    GENConv(8, 8, aggr='powermean', p=1.0, learn_p=True, norm='layer'),
                ]
            )
            self.norms, self.lin = ModuleList([LayerNorm(8), LayerNorm(8)]), Linear(8, 3)

        def forward(self, data: Data) -> Tensor:
            x, edge_attr = self.node(data.x), self.edge(data.edge_attr)
            for norm, conv in zip(self.norms, self.convs, strict=True):
                x = x + conv(norm(x).relu(), data.edge_index, edge_attr)
            return self.lin(x)

    return trained(data, ddp, Model)


def pna_with_the_degree_histogram(data: Data, ddp: Ddp) -> Results:
    """The histogram is counted after loading, as in PyG's example."""
    torch.manual_seed(0)
    deg = degree(data.edge_index[1], num_nodes=data.num_nodes, dtype=torch.long)
    histogram = torch.bincount(deg, minlength=int(deg.max()) + 1)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = PNAConv(
                6,
                8,
                aggregators=['mean', 'min', 'max', 'std'],
                scalers=['identity', 'amplification', 'attenuation'],
                deg=histogram,
                edge_dim=4,
                towers=2,
                divide_input=True,
            )
            self.bn, self.lin = BatchNorm1d(8), Linear(8, 3)

        def forward(self, data: Data) -> Tensor:
            return self.lin(self.bn(self.conv(data.x, data.edge_index, data.edge_attr)).relu())

    return trained(data, ddp, Model)


def gat_with_attributes_and_self_loops(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = GATConv(6, 4, heads=2, edge_dim=4, fill_value='max')
            self.conv2 = GATConv(8, 3, edge_dim=4, fill_value='mean', residual=True)
            self.norm = GraphNorm(8)

        def forward(self, data: Data) -> Tensor:
            x = F.elu(self.norm(self.conv1(data.x, data.edge_index, data.edge_attr)))
            return self.conv2(x, data.edge_index, data.edge_attr)

    return trained(data, ddp, Model)


def nn_conv_and_a_gru(data: Data, ddp: Ddp) -> Results:
    """Weights by edge networks, one conv and one GRU used three times: MPNN."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin0, self.out = Linear(6, 4), Linear(4, 3)
            network = Sequential(Linear(4, 8), ReLU(), Linear(8, 16))
            self.conv, self.gru = NNConv(4, 4, network, aggr='mean'), torch.nn.GRU(4, 4)

        def forward(self, data: Data) -> Tensor:
            out = self.lin0(data.x).relu()
            h = out.unsqueeze(0)
            for _ in range(3):
                m = self.conv(out, data.edge_index, data.edge_attr).relu()
                out, h = self.gru(m.unsqueeze(0), h)
                out = out.squeeze(0)
            return self.out(out)

    return trained(data, ddp, Model)


@by_order
def unified_label_model(data: Data, ddp: Ddp) -> Results:
    """UniMP: masked labels go in, the rest is learned; another part is masked in every step."""
    torch.manual_seed(0)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.conv1 = torch.nn.Embedding(3, 6), TransformerConv(6, 4, heads=2)
            self.conv2 = TransformerConv(8, 3, heads=2, concat=False, beta=True)
            self.norm = LayerNorm(8)

        def forward(self, data: Data, known: Tensor) -> Tensor:
            x = data.x.clone()
            x[known] += self.emb(data.y[known])
            x = self.norm(self.conv1(x, data.edge_index)).relu()
            return self.conv2(x, data.edge_index)

    model = ddp(Model().double())

    def loss_of() -> Tensor:
        known = data.train_mask & (torch.rand(data.num_nodes) < 0.6)
        asked = data.train_mask & ~known
        return F.cross_entropy(model(data, known)[asked], data.y[asked])

    losses = descend(loss_of, model)
    model.eval()
    with torch.no_grad():
        out = model(data, data.train_mask)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


def weights_tied_between_layers(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin1, self.lin2 = Linear(6, 8), Linear(8, 3)
            self.conv1, self.conv2 = GCNConv(8, 8), SAGEConv(8, 8)
            self.conv3 = GCNConv(8, 8)
            self.conv3.lin.weight = self.conv1.lin.weight
            self.conv2.lin_r.weight = self.conv1.lin.weight

        def forward(self, data: Data) -> Tensor:
            x = self.lin1(data.x).relu()
            for conv in (self.conv1, self.conv2, self.conv3, self.conv1):
                x = conv(x, data.edge_index).tanh()
            return self.lin2(x)

    return trained(data, ddp, Model)


def same_norm_after_every_layer(data: Data, ddp: Ddp) -> Results:
    """One batch norm used three times: its running statistics are moved three times a step."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.conv, self.norm = Linear(6, 8), GCNConv(8, 8), BatchNorm1d(8)
            self.heads = ModuleList([Linear(8, 3) for _ in range(3)])

        def forward(self, data: Data) -> Tensor:
            x, out = self.lin(data.x), 0
            for head in self.heads:
                x = self.norm(self.conv(x, data.edge_index)).relu()
                out = out + head(x)
            return out

    return trained(data, ddp, Model)


def gated_conv_with_source_statistics(data: Data, ddp: Ddp) -> Results:
    """GatedGCN: two results, of nodes and of edges, from one layer with norms of both."""

    class GatedConvWith(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.A, self.B, self.C, self.D, self.E = (Linear(8, 8) for _ in range(5))
            self.bn_x, self.bn_e = BatchNorm1d(8), BatchNorm1d(8)

        def forward(self, x: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            x_in, e_in = x, e
            Ax, Bx, Ce, Dx, Ex = self.A(x), self.B(x), self.C(e), self.D(x), self.E(x)
            x, e = self.propagate(edge_index, Bx=Bx, Dx=Dx, Ex=Ex, Ce=Ce, Ax=Ax)
            return x_in + self.bn_x(x).relu(), e_in + self.bn_e(e).relu()

        def message(self, Dx_i: Tensor, Ex_j: Tensor, Ce: Tensor) -> Tensor:
            e_ij = Dx_i + Ex_j + Ce
            self.e = e_ij
            return e_ij.sigmoid()

        def aggregate(self, sigma_ij: Tensor, index: Tensor, Bx_j: Tensor, Bx: Tensor) -> Tensor:
            num = Bx.size(0)
            top = scatter(sigma_ij * Bx_j, index, 0, num, reduce='sum')
            return top / (scatter(sigma_ij, index, 0, num, reduce='sum') + 1e-6)

        def update(self, aggr_out: Tensor, Ax: Tensor) -> tuple[Tensor, Tensor]:
            e_out = self.e
            del self.e
            return Ax + aggr_out, e_out

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.node, self.edge, self.lin = Linear(6, 8), Linear(4, 8), Linear(8, 3)
            self.convs = ModuleList([GatedConvWith(), GatedConvWith()])

        def forward(self, data: Data) -> Tensor:
            x, e = self.node(data.x), self.edge(data.edge_attr)
            for conv in self.convs:
                x, e = conv(x, e, data.edge_index)
            return self.lin(x)

    return trained(data, ddp, Model)


def ties_in_the_largest(data: Data, ddp: Ddp) -> Results:
    """Many equal values under max, and their gradients."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = SAGEConv(6, 8, aggr='max')
            self.conv2 = SAGEConv(8, 3, aggr=['max', 'mean', 'min'])

        def forward(self, data: Data) -> Tensor:
            return self.conv2(
                self.conv1(data.x.round().clamp(0, 2), data.edge_index).relu(), data.edge_index
            )

    return trained(data, ddp, Model)


def both_flows_in_one_layer(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out_of = SAGEConv(6, 8), SAGEConv(6, 8, flow='target_to_source')
            self.into2, self.out_of2 = (
                GATConv(8, 3),
                GATConv(8, 3, flow='target_to_source'),
            )
            self.alpha = Parameter(torch.tensor(0.3))

        def forward(self, data: Data) -> Tensor:
            a, e = self.alpha, data.edge_index
            x = (a * self.into(data.x, e) + (1 - a) * self.out_of(data.x, e)).relu()
            return a * self.into2(x, e) + (1 - a) * self.out_of2(x, e)

    return trained(data, ddp, Model)


class ReadsEdges(MessagePassing):
    """Weights by the ids of both ends, and by the size that PyG gives."""

    def __init__(self) -> None:
        super().__init__(aggr='mean')
        self.lin = Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_j: Tensor, edge_index: Tensor, size: list[int | None]) -> Tensor:
        weight = (edge_index[0] * 3 + edge_index[1]).double().view(-1, 1).sin()
        return x_j * weight / (size[0] or 1)


@by_order
def a_message_that_reads_the_edges(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(ReadsEdges().double())
    losses = descend(
        lambda: F.cross_entropy(model(data.x, data.edge_index), data.y), model, steps=3
    )
    return {'losses': losses, 'weights': weights(model)}
