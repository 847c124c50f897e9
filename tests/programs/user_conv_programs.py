"""Convs that users write: what their messages, aggregations and updates look at."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, mlp, named, parts, programs
from three_steps import descend, fitted, model_of, supervised, trained, weights
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, ModuleList, Parameter
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, MessagePassing
from torch_geometric.nn.inits import glorot
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter, softmax


class Conv(MessagePassing):
    """6 channels to 3; the messages are what a program is about.

    Subclasses differ in name: PyG names the code that it generates for one by it.
    """

    def __init__(self, aggr: Any = 'add', num: int = 6, **options: Any) -> None:
        super().__init__(aggr=aggr, **options)
        self.lin = Linear(num, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Any:
        return self.propagate(edge_index, x=self.lin(x))


class Tutorial(Conv):
    """Self loops and degrees in forward, as PyG's tutorial writes them."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        deg_inv_sqrt = degree(col, x.size(0), dtype=x.dtype).pow(-0.5)
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, x=self.lin(x), norm=norm)

    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        return norm.view(-1, 1) * x_j


class TutorialTurned(Tutorial):
    """Target to source, the loops there were are taken out."""

    def __init__(self) -> None:
        super().__init__(flow='target_to_source')

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edge_index, _ = remove_self_loops(edge_index)
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        row, col = edge_index
        norm = degree(row, x.size(0), dtype=x.dtype).pow(-0.5)
        norm[norm == float('inf')] = 0
        return self.propagate(edge_index, x=self.lin(x), norm=norm[row] * norm[col])


class Centred(Conv):
    """Statistics of all nodes before, after and in the update."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = F.normalize(self.lin(x), dim=-1)
        out = self.propagate(edge_index, x=h - h.mean(0)) + h.mean(dim=0)
        return out / degree(edge_index[1], x.size(0)).clamp(min=1).sqrt().view(-1, 1)

    def update(self, aggr_out: Tensor, x: Tensor) -> Tensor:
        out = aggr_out / aggr_out.abs().max() + x
        return (out - out.mean(dim=0)) / (out.std(dim=0) + 1e-5)


class NormedUpdater(Conv):
    """edge_updater with a norm over all edges; what it gives, and what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.att, self.bn = Linear(12, 4), BatchNorm1d(4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        e = edge_attr + self.edge_updater(edge_index, x=x, edge_attr=None)
        same = self.edge_updater(edge_index, x=None, edge_attr=edge_attr)
        return self.propagate(edge_index, x=self.lin(x), e=e + same) + e.mean()

    def edge_update(self, x_i: Any, x_j: Any, edge_attr: Any) -> Tensor:
        if edge_attr is not None:
            return edge_attr
        return self.bn(self.att(torch.cat([x_i, x_j], dim=-1))).relu()

    def message(self, x_j: Tensor, e: Tensor) -> Tensor:
        self.last = e
        return x_j * e[:, :1].sigmoid()


class BothIndices(Conv):
    """A table of all nodes read by edge_index_j inside of the message."""

    def __init__(self) -> None:
        super().__init__('mean')
        self.level = Linear(6, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x), level=self.level(x).squeeze(-1))

    def message(
        self, x_j: Tensor, edge_index_i: Tensor, edge_index_j: Tensor, level: Tensor
    ) -> Tensor:
        return x_j * (level[edge_index_i] - level[edge_index_j]).tanh().view(-1, 1)


class ReadsTables(Conv):
    """Tables by kinds of edges, which have by chance as many rows as there are nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.level = Parameter(torch.randn(91, 3)), Parameter(torch.randn(91))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        kind = (edge_attr[:, 0] > 0).long() + 80 * (edge_attr[:, 1] > 1).long()
        tables = {'table': self.table.tanh(), 'level': self.level}
        return self.propagate(edge_index, x=self.lin(x), kind=kind, **tables)

    def message(self, x_j: Tensor, kind: Tensor, table: Tensor, level: Tensor) -> Tensor:
        return x_j * table[kind] + level[kind].view(-1, 1)


class ReadsEdges(Conv):
    """Weights by the ids of both ends, and by the size that PyG gives."""

    def message(self, x_j: Tensor, edge_index: Tensor, size: list[int | None]) -> Tensor:
        weight = (edge_index[0] * 3 + edge_index[1]).double().view(-1, 1).sin()
        return x_j * weight / (size[0] or 1)


class OwnAggregate(Conv):
    """Softmax with a temperature, mean and deviation, torch's own scatter_reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.post = Parameter(torch.tensor(0.7)), Linear(12, 3)

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        alpha = softmax(inputs * self.t, index, num_nodes=dim_size)
        soft = scatter(inputs * alpha, index, dim=0, dim_size=dim_size, reduce='sum')
        mean = scatter(inputs, index, 0, dim_size, reduce='mean')
        square = scatter(inputs * inputs, index, 0, dim_size, reduce='mean')
        std = ((square - mean * mean).relu() + 1e-5).sqrt()
        out = inputs.new_zeros(dim_size, inputs.size(-1))
        index = index.unsqueeze(-1).expand_as(inputs)
        most = out.scatter_reduce(0, index, inputs, reduce='amax', include_self=False)
        return torch.cat([soft, mean, std, most], dim=-1)

    def update(self, aggr_out: Tensor) -> Tensor:
        return self.post(aggr_out)


class AggregateOfAll(Conv):
    """The aggregation subtracts its mean over nodes, divides by a degree of the whole graph."""

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        out = scatter(inputs, index, 0, dim_size, reduce='sum')
        deg = degree(index, dim_size, dtype=inputs.dtype)
        return (out - out.mean(dim=0)) / deg.mean()


class GivesADict(Conv):
    """And a number of all nodes."""

    def __init__(self) -> None:
        super().__init__('mean')
        self.gate = Linear(9, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        found, scale = self.propagate(edge_index, x=self.lin(x), x0=x)
        return found['gate'] * found['out'] / scale + found['out'].mean(0)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j

    def update(self, aggr_out: Tensor, x0: Tensor) -> Any:
        gate = self.gate(torch.cat([aggr_out, x0], dim=-1)).sigmoid()
        return {'out': aggr_out, 'gate': gate}, aggr_out.norm() + 1


class RunningDegrees(Conv):
    """A buffer that forward of the conv keeps in training, as PNA's authors have it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('mean_degree', torch.ones(1))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        deg = degree(edge_index[1], x.size(0), dtype=x.dtype)
        if self.training:
            with torch.no_grad():
                self.mean_degree.mul_(0.9).add_(0.1 * (deg + 1).log().mean())
        scale = (deg + 1).log() / self.mean_degree
        return self.propagate(edge_index, x=self.lin(x)) * scale.view(-1, 1)


class Outer(Conv):
    """A conv of PyG's inside, and a weight by glorot."""

    def __init__(self) -> None:
        super().__init__('max')
        self.inner, self.norm = GATConv(6, 4, heads=2), LayerNorm(8)
        self.weight = Parameter(torch.empty(8, 3))
        glorot(self.weight)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.norm(self.inner(x, edge_index)).relu()
        return (h - self.propagate(edge_index, x=h)) @ self.weight

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return (x_i - x_j).abs()


class Crystal(Conv):
    """Gates and cores of CGCNN, with a norm over the edges, a norm over nodes after them."""

    def __init__(self) -> None:
        super().__init__()
        self.full, self.bn1, self.bn2 = Linear(16, 12), BatchNorm1d(12), BatchNorm1d(6)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        out = self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return self.lin(F.softplus(x + self.bn2(out)))

    def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        gate, core = self.bn1(self.full(torch.cat([x_i, x_j, edge_attr], -1))).chunk(2, dim=-1)
        return gate.sigmoid() * F.softplus(core)


class LargestOfBags(Conv):
    """Bags of words: many equal values, of which the largest is rare."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        bags = (x > 1).double() + (x > 4).double() + 1
        return self.lin(self.propagate(edge_index, x=bags))

    def message(self, x_j: Tensor) -> Tensor:
        return x_j / x_j.amax(dim=0)


def of_conv(data: Data, ddp: Ddp, make: type[Conv]) -> Results:
    return trained(data, ddp, make, data.edge_attr, lr=0.02)


PROGRAMS = programs(
    of_conv,
    named(
        *(Tutorial, TutorialTurned, Centred, NormedUpdater, BothIndices, ReadsTables, ReadsEdges),
        *(OwnAggregate, AggregateOfAll, GivesADict, RunningDegrees, Outer, Crystal, LargestOfBags),
    ),
)


def edge_attention_kept_on_self(data: Data, ddp: Ddp) -> Results:
    """Message writes what it found to self, for a loss of the model."""

    class KeepsAttention(Conv):
        def __init__(self) -> None:
            super().__init__(node_dim=0)
            self.att = Linear(6, 1)

        def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
            alpha = F.leaky_relu(self.att(torch.cat([x_i, x_j], -1)), 0.2)
            self._alpha = softmax(alpha, index, num_nodes=size_i)
            return self._alpha * x_j

    @parts(conv=KeepsAttention)
    def net(m: Any, *args: Tensor) -> Tensor:
        return m.conv(*args)

    torch.manual_seed(0)
    model = net().double()
    conv, model = model.conv, ddp(model)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, data.edge_attr)
        entropy = -(conv._alpha * conv._alpha.clamp(min=1e-9).log()).mean()
        return supervised(out, data) + 0.1 * entropy

    return fitted(loss_of, model)


class Gated(MessagePassing):
    """GatedGCN: two results, of nodes and of edges, from one layer with norms of both."""

    def __init__(self) -> None:
        super().__init__(aggr='add')
        self.A, self.B, self.C, self.D, self.E = (Linear(8, 8) for _ in range(5))
        self.bn_x, self.bn_e = BatchNorm1d(8), BatchNorm1d(8)

    def forward(self, x: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        new, gates = self.propagate(
            edge_index, Bx=self.B(x), Dx=self.D(x), Ex=self.E(x), Ce=self.C(e), Ax=self.A(x)
        )
        return x + self.bn_x(new).relu(), e + self.bn_e(gates).relu()

    def message(self, Dx_i: Tensor, Ex_j: Tensor, Ce: Tensor) -> Tensor:
        self.e = Dx_i + Ex_j + Ce
        return self.e.sigmoid()

    def aggregate(self, sigma_ij: Tensor, index: Tensor, Bx_j: Tensor, Bx: Tensor) -> Tensor:
        num = Bx.size(0)
        top = scatter(sigma_ij * Bx_j, index, 0, num, reduce='sum')
        return top / (scatter(sigma_ij, index, 0, num, reduce='sum') + 1e-6)

    def update(self, aggr_out: Tensor, Ax: Tensor) -> tuple[Tensor, Tensor]:
        e_out = self.e
        del self.e
        return Ax + aggr_out, e_out


def gated_graph_transformer(data: Data, ddp: Ddp) -> Results:
    """GatedGCN beside linear attention, feed-forward with a norm, twice."""

    @parts(
        node=(Linear, 6, 8),
        edge=(Linear, 4, 8),
        lin=(Linear, 8, 3),
        convs=lambda: ModuleList([Gated(), Gated()]),
        qkv=(Linear, 8, 24),
        bn=(BatchNorm1d, 8),
        ff=(mlp, 8, 16, 8),
    )
    def net(m: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = m.node(x), m.edge(edge_attr)
        for conv in m.convs:
            x, e = conv(x, e, edge_index)
            q, k, v = m.qkv(x).chunk(3, dim=-1)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            there = q @ (k.t() @ v) / (q @ k.sum(0, keepdim=True).t())
            x = m.bn(x + there + m.ff(x))
        return m.lin(x)

    return trained(data, ddp, net, data.edge_attr)


def frozen_after_a_step(data: Data, ddp: Ddp) -> Results:
    """Norms in a conv learn in the first step, and are in evaluation afterwards."""
    model = model_of(ddp, Crystal)
    losses = []
    for step in range(3):
        model.train()
        for module in model.modules():
            if step and isinstance(module, BatchNorm1d):
                module.eval().requires_grad_(False)
        losses += descend(
            lambda: supervised(model(data.x, data.edge_index, data.edge_attr), data), model, steps=1
        )
    return {'losses': losses, 'weights': weights(model)}
