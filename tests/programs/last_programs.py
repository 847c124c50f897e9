"""A few more of the kind: norms of messages, ties, views, attributes as rows, several graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList, Parameter, Sequential
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, MessagePassing, SAGEConv
from torch_geometric.nn.inits import glorot
from torch_geometric.utils import add_remaining_self_loops, degree, scatter


def supervised(out: Tensor, data: Data) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def trained(data: Data, ddp: Ddp, conv: Module, lr: float = 0.05) -> Results:
    """Three steps of a conv that gives logits, twice over; its output in evaluation."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, data: Data) -> Tensor:
            return self.conv(data.x, data.edge_index, data.edge_attr)

    model = ddp(Model().double())
    losses = descend(lambda: supervised(model(data), data), model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


class ByEdges(MessagePassing):
    """Six channels to three, `scored` is what a program is about."""

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.lin, self.score = Linear(6, 3), Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        score = self.score(torch.cat([x_i, x_j, edge_attr], dim=1))
        return self.lin(x_j) * self.scored(score)

    def scored(self, score: Tensor) -> Tensor:
        raise NotImplementedError


def messages_between_least_and_largest(data: Data, ddp: Ddp) -> Results:
    class MinMaxConv(ByEdges):
        def scored(self, score: Tensor) -> Tensor:
            return (score - score.min()) / (score.max() - score.min())

    torch.manual_seed(0)
    return trained(data, ddp, MinMaxConv())


def messages_above_a_quantile(data: Data, ddp: Ddp) -> Results:
    class QuantileConv(ByEdges):
        def scored(self, score: Tensor) -> Tensor:
            return score * (score >= score.detach().quantile(0.3))

    torch.manual_seed(0)
    return trained(data, ddp, QuantileConv())


def messages_clipped_by_their_deviation(data: Data, ddp: Ddp) -> Results:
    class ClippedConv(ByEdges):
        def scored(self, score: Tensor) -> Tensor:
            bound = 1.5 * score.detach().std()
            return torch.maximum(torch.minimum(score, bound), -bound)

    torch.manual_seed(0)
    return trained(data, ddp, ClippedConv())


def messages_by_an_if_over_all(data: Data, ddp: Ddp) -> Results:
    class BranchConv(ByEdges):
        def scored(self, score: Tensor) -> Tensor:
            return score.sigmoid() if (score > 1.8).any() else score.tanh()

    torch.manual_seed(0)
    return trained(data, ddp, BranchConv())


def softmax_over_all_edges_in_the_message(data: Data, ddp: Ddp) -> Results:
    class AllConv(ByEdges):
        def scored(self, score: Tensor) -> Tensor:
            return torch.softmax(score, dim=0) * score.size(0)

    torch.manual_seed(0)
    return trained(data, ddp, AllConv())


def number_of_edges_in_the_message(data: Data, ddp: Ddp) -> Results:
    class NumberConv(ByEdges):
        def scored(self, score: Tensor) -> Tensor:
            return score / score.shape[0] ** 0.5

    torch.manual_seed(0)
    return trained(data, ddp, NumberConv())


def features_of_ones_divided_by_their_largest(data: Data, ddp: Ddp) -> Results:
    """Bags of words: many equal values, of which the largest is rare."""

    class BagConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='mean')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.lin(self.propagate(edge_index, x=x))

        def message(self, x_j: Tensor) -> Tensor:
            return x_j / x_j.amax(dim=0)

    torch.manual_seed(0)
    data.x = (data.x > 1).double() + (data.x > 4).double() + 1
    return trained(data, ddp, BagConv())


def aggregate_uses_all_nodes(data: Data, ddp: Ddp) -> Results:
    """The aggregation subtracts its mean over nodes, divides by a degree of the whole graph."""

    class MeanConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__()
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
            out = scatter(inputs, index, 0, dim_size, reduce='sum')
            deg = degree(index, dim_size, dtype=inputs.dtype)
            return (out - out.mean(dim=0)) / deg.mean()

    torch.manual_seed(0)
    return trained(data, ddp, MeanConv())


def update_gives_a_dict(data: Data, ddp: Ddp) -> Results:
    class DictConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='mean')
            self.lin, self.gate = Linear(6, 3), Linear(9, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            found = self.propagate(edge_index, x=self.lin(x), x0=x)
            return found['gate'] * found['out'] + found['out'].mean(0)

        def message(self, x_j: Tensor) -> Tensor:
            return x_j

        def update(self, aggr_out: Tensor, x0: Tensor) -> dict[str, Tensor]:
            gate = self.gate(torch.cat([aggr_out, x0], dim=-1)).sigmoid()
            return {'out': aggr_out, 'gate': gate}

    torch.manual_seed(0)
    return trained(data, ddp, DictConv())


def update_gives_rows_and_a_number(data: Data, ddp: Ddp) -> Results:
    class PairConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            out, scale = self.propagate(edge_index, x=self.lin(x))
            return out / scale

        def update(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return inputs, inputs.norm() + 1

    torch.manual_seed(0)
    return trained(data, ddp, PairConv())


def conv_inside_of_a_conv(data: Data, ddp: Ddp) -> Results:
    """A user's conv with PyG's inside, both with norms, and a weight by glorot."""

    class OuterConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='max')
            self.inner, self.norm = GATConv(6, 4, heads=2), LayerNorm(8)
            self.weight = Parameter(torch.empty(8, 3))
            glorot(self.weight)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            h = self.norm(self.inner(x, edge_index)).relu()
            h = h - self.propagate(edge_index, x=h)
            return h @ self.weight

        def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return (x_i - x_j).abs()

    torch.manual_seed(0)
    return trained(data, ddp, OuterConv())


@by_order
def learned_vector_of_edge_weights(data: Data, ddp: Ddp) -> Results:
    """An explainer by hand: one learned number for every edge, the model is frozen."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())
    inner = getattr(model, 'module', model)
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    mask = Parameter(torch.linspace(-1, 1, data.num_edges, dtype=torch.double))
    order = data.edge_weight.new_zeros(data.num_edges)

    def loss_of() -> Tensor:
        weight = mask.sigmoid()
        h = inner.conv1(data.x, data.edge_index, weight).relu()
        out = inner.conv2(h, data.edge_index, weight)
        return supervised(out, data) + 0.01 * weight.sum() + order.sum()

    losses += descend(loss_of, [mask], lr=1.0)
    return {'losses': losses, 'sum': mask.sum()}


def gated_graph_transformer(data: Data, ddp: Ddp) -> Results:
    """GatedGCN beside linear attention, batch norms after both, feed-forward, twice."""

    class GatedConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.a, self.b, self.c, self.d = (Linear(8, 8) for _ in range(4))
            self.edge, self.bn_e = Linear(8, 8), BatchNorm1d(8)

        def forward(self, x: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            new, gates = self.propagate(
                edge_index, a=self.a(x), b=self.b(x), c=self.c(x), d=self.d(x), e=self.edge(e)
            )
            return new, e + self.bn_e(gates).relu()

        def message(self, c_i: Tensor, d_j: Tensor, e: Tensor) -> Tensor:
            self.gates = c_i + d_j + e
            return self.gates.sigmoid()

        def aggregate(self, gate: Tensor, index: Tensor, b_j: Tensor, b: Tensor) -> Tensor:
            top = scatter(gate * b_j, index, 0, b.shape[0], reduce='sum')
            return top / (scatter(gate, index, 0, b.shape[0], reduce='sum') + 1e-6)

        def update(self, aggr_out: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
            return a + aggr_out, self.gates

    class Layer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.local, self.qkv = GatedConv(), Linear(8, 24)
            self.bn1, self.bn2, self.bn3 = BatchNorm1d(8), BatchNorm1d(8), BatchNorm1d(8)
            self.ff = Sequential(Linear(8, 16), torch.nn.ReLU(), Linear(16, 8))

        def forward(self, x: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            here, e = self.local(x, e, edge_index)
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            there = q @ (k.t() @ v) / (q @ k.sum(0, keepdim=True).t())
            x = self.bn1(x + here) + self.bn2(x + there)
            return self.bn3(x + self.ff(x)), e

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.node, self.attr, self.lin = Linear(6, 8), Linear(4, 8), Linear(8, 3)
            self.layers = ModuleList([Layer(), Layer()])

        def forward(self, data: Data) -> Tensor:
            x, e = self.node(data.x), self.attr(data.edge_attr)
            for layer in self.layers:
                x, e = layer(x, e, data.edge_index)
            return self.lin(x)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: supervised(model(data), data), model)
    model.eval()
    with torch.no_grad():
        out = model(data)
    return {'losses': losses, 'out': out}


def loops_with_mean_attributes_by_hand(data: Data, ddp: Ddp) -> Results:
    """Self loops that take means of attributes, a conv on them and a sum by hand."""
    torch.manual_seed(0)
    edge_index, attr = add_remaining_self_loops(
        data.edge_index, data.edge_attr, fill_value='mean', num_nodes=data.num_nodes
    )
    conv1 = GATConv(6, 8, edge_dim=4, add_self_loops=False)
    conv2, conv3 = SAGEConv(8, 8), GCNConv(8, 3, add_self_loops=False)
    model = ddp(ModuleList([conv1, conv2, conv3]).double())
    one, two, three = getattr(model, 'module', model)

    def loss_of() -> Tensor:
        h = one(data.x, edge_index, attr).relu()
        h = two(h, edge_index) + scatter(attr.norm(dim=1), edge_index[1], 0, data.num_nodes).view(
            -1, 1
        )
        return supervised(three(h, edge_index, attr.sigmoid().mean(1)), data)

    return {'losses': descend(loss_of, model, 0.02), 'weights': weights(model)}


def messages_by_an_if_that_is_rare(data: Data, ddp: Ddp) -> Results:
    """What the message does depends on whether any edge has a large number."""

    class RareConv(ByEdges):
        def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
            out = self.lin(x_j)
            return out.tanh() if (x_j > 4.2).any() else out

    torch.manual_seed(0)
    return trained(data, ddp, RareConv())
