"""Odd but plain: what is least likely to be thought of, in convs, indexes, draws and gradients."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, Parameter, Sequential
from torch_geometric.data import Data
from torch_geometric.nn import (
    ARMAConv,
    ChebConv,
    EdgeConv,
    FAConv,
    GATv2Conv,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    GraphNorm,
    MessagePassing,
    SAGEConv,
    TAGConv,
)
from torch_geometric.utils import (
    add_self_loops,
    coalesce,
    contains_isolated_nodes,
    contains_self_loops,
    degree,
    dense_to_sparse,
    dropout_edge,
    dropout_node,
    get_laplacian,
    homophily,
    is_undirected,
    mask_feature,
    negative_sampling,
    remove_isolated_nodes,
    scatter,
    softmax,
    to_undirected,
)


def supervised(out: Tensor, data: Data) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def trained(data: Data, ddp: Ddp, model: Module, lr: float = 0.05) -> Results:
    """Three steps of a model of the whole data, and its output in evaluation."""
    model = ddp(model.double())
    losses = descend(lambda: supervised(model(data), data), model, lr)
    model.eval()
    with torch.no_grad():
        out = model(data)
    return {'losses': losses, 'out': out, 'weights': weights(model)}


def message_reads_its_own_degree(data: Data, ddp: Ddp) -> Results:
    """A message divided by how many come to its end, counted in the message."""

    class CountConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
            deg = degree(index, size_i, dtype=x_j.dtype)
            return x_j / deg[index].view(-1, 1).sqrt()

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = CountConv()

        def forward(self, data: Data) -> Tensor:
            return self.conv(data.x, data.edge_index)

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def message_reads_both_indices(data: Data, ddp: Ddp) -> Results:
    """A table of all nodes read by edge_index_j inside of the message."""

    class TableConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='mean')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, level: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x), level=level)

        def message(
            self, x_j: Tensor, edge_index_i: Tensor, edge_index_j: Tensor, level: Tensor
        ) -> Tensor:
            return x_j * (level[edge_index_i] - level[edge_index_j]).tanh().view(-1, 1)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.level = TableConv(), Linear(6, 1)

        def forward(self, data: Data) -> Tensor:
            return self.conv(data.x, data.edge_index, self.level(data.x).squeeze(-1))

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def message_divided_by_the_largest(data: Data, ddp: Ddp) -> Results:
    """A score of edges divided by its largest over all edges."""

    class ScoreConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.lin, self.score = Linear(6, 4), Linear(16, 1)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x, edge_attr=edge_attr)

        def message(self, x_i: Tensor, x_j: Tensor, edge_attr: Tensor) -> Tensor:
            score = self.score(torch.cat([x_i, x_j, edge_attr], dim=1)).exp()
            return self.lin(x_j) * score / score.max()

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = ScoreConv(), Linear(4, 3)

        def forward(self, data: Data) -> Tensor:
            return self.lin(self.conv(data.x, data.edge_index, data.edge_attr))

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def least_over_edges_turned_round(data: Data, ddp: Ddp) -> Results:
    """A message that looks at all edges, which run the other way."""

    class LeastConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', flow='target_to_source')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=self.lin(x))

        def message(self, x_j: Tensor) -> Tensor:
            return x_j - x_j.min()

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = LeastConv()

        def forward(self, data: Data) -> Tensor:
            return self.conv(data.x, data.edge_index)

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def edge_updates_between_layers(data: Data, ddp: Ddp) -> Results:
    """edge_updater with a norm over all edges, its attributes kept on the conv."""

    class UpdateConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.att, self.bn, self.lin = Linear(12, 4), BatchNorm1d(4), Linear(4, 1)

        def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
            e = e + self.edge_updater(edge_index, x=x)
            return self.propagate(edge_index, x=x, w=self.lin(e)), e

        def edge_update(self, x_i: Tensor, x_j: Tensor) -> Tensor:
            return self.bn(self.att(torch.cat([x_i, x_j], dim=-1))).relu()

        def message(self, x_j: Tensor, w: Tensor) -> Tensor:
            return x_j * w.sigmoid()

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs, self.lin = ModuleList([UpdateConv(), UpdateConv()]), Linear(10, 3)

        def forward(self, data: Data) -> Tensor:
            x, e = data.x, data.edge_attr
            for conv in self.convs:
                x, e = conv(x, data.edge_index, e)
                x = F.normalize(x, dim=-1)
            mean = scatter(e, data.edge_index[1], 0, data.num_nodes, reduce='mean')
            return self.lin(torch.cat([x, mean], dim=-1))

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def edge_update_gives_what_it_got(data: Data, ddp: Ddp) -> Results:
    class SameConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add')
            self.lin = Linear(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            e = self.edge_updater(edge_index, edge_attr=edge_attr)
            return self.propagate(edge_index, x=self.lin(x), e=e) + e.mean()

        def edge_update(self, edge_attr: Tensor) -> Tensor:
            return edge_attr

        def message(self, x_j: Tensor, e: Tensor) -> Tensor:
            self.last = e
            return x_j * e[:, :1]

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SameConv()

        def forward(self, data: Data) -> Tensor:
            first = self.conv(data.x, data.edge_index, data.edge_attr)
            return first + self.conv(data.x, data.edge_index, data.edge_attr)

    torch.manual_seed(0)
    return trained(data, ddp, Model()) | {'attr': data.edge_attr.sum()}


def matrix_times_in_message_and_aggregate(data: Data, ddp: Ddp) -> Results:
    """message_and_aggregate and the attention normalised by hand over sources."""

    class SourceConv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr='add', node_dim=0)
            self.lin, self.att = Linear(6, 6), Parameter(torch.randn(1, 2, 3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.lin(x).view(-1, 2, 3)
            alpha = (h * self.att).sum(-1)
            row, col = edge_index
            alpha = F.leaky_relu(alpha[row] + alpha[col])
            alpha = softmax(alpha, row, num_nodes=x.size(0))
            return self.propagate(edge_index, x=h, alpha=alpha).mean(1)

        def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
            return x_j * alpha.unsqueeze(-1)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SourceConv()

        def forward(self, data: Data) -> Tensor:
            return self.conv(data.x, data.edge_index)

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def convs_of_many_terms(data: Data, ddp: Ddp) -> Results:
    """Chebyshev with weights and a given lambda, ARMA, TAG, FA and GCN2 with shared weights."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.cheb, self.arma = ChebConv(6, 8, 3), ARMAConv(8, 8, 2, 2, shared_weights=True)
            self.tag, self.fa, self.lin = TAGConv(8, 8, 2), FAConv(8, eps=0.2), Linear(8, 3)
            self.gcn2 = GCN2Conv(8, 0.2, 0.5, 1, shared_weights=True)
            self.norm = GraphNorm(8)

        def forward(self, data: Data) -> Tensor:
            e, w = data.edge_index, data.edge_weight
            h = self.cheb(data.x, e, w, lambda_max=2.0).relu()
            x = self.norm(self.arma(h, e, w))
            x = self.gcn2(self.tag(x, e, w).relu(), h, e, w)
            return self.lin(self.fa(x, h, e))

    torch.manual_seed(0)
    return trained(data, ddp, Model())


@by_order
def nodes_and_features_dropped(data: Data, ddp: Ddp) -> Results:
    """dropout_node, mask_feature, dropout_edge of undirected edges; one after another."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = SAGEConv(6, 8), SAGEConv(8, 3)

        def forward(self, data: Data) -> Tensor:
            x, e = data.x, data.edge_index
            if self.training:
                e, _, mask = dropout_node(e, p=0.2, num_nodes=data.num_nodes)
                x, _ = mask_feature(x, p=0.3, mode='all')
                x = x * mask.view(-1, 1)
                e, _ = dropout_edge(e, p=0.2)
            return self.conv2(self.conv1(x, e).relu(), e)

    torch.manual_seed(0)
    return trained(data, ddp, Model())


@by_order
def what_utils_say_of_the_graph(data: Data, ddp: Ddp) -> Results:
    e, n = data.edge_index, data.num_nodes
    lap, weight = get_laplacian(e, data.edge_weight, 'rw', num_nodes=n)
    return {
        'isolated': contains_isolated_nodes(e, n),
        'loops': contains_self_loops(e),
        'undirected': is_undirected(e),
        'homophily': [homophily(e, data.y, method=m) for m in ('edge', 'node', 'edge_insensitive')],
        'unique': coalesce(e, num_nodes=n).size(1),
        'both': to_undirected(e, num_nodes=n).size(1),
        'lap': scatter(weight, lap[1], 0, n),
        'ids': int(e.max()) + 1 < n,
        'degrees': degree(e[0], n).long().bincount(),
    }


def isolated_nodes_removed(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    edge_index, _, mask = remove_isolated_nodes(data.edge_index, num_nodes=data.num_nodes)
    x, y, train = data.x[mask], data.y[mask], data.train_mask[mask]
    model = ddp(Net(6, 8, 3).double())
    losses = descend(lambda: F.cross_entropy(model(x, edge_index)[train], y[train]), model)
    return {'losses': losses, 'mask': mask}


@by_order
def neighbours_by_similarity(data: Data, ddp: Ddp) -> Results:
    """A learned dense graph of a few landmarks, made sparse, beside the given one."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.conv, self.small = Linear(6, 8), GCNConv(8, 8), GraphConv(8, 8)
            self.lin = Linear(16, 3)

        def forward(self, data: Data) -> Tensor:
            z = self.emb(data.x).tanh()
            marks = z[:5]
            sim = (marks @ marks.t()).sigmoid()
            e, w = dense_to_sparse(sim * (sim > 0.4))
            marks = self.small(marks, e, w)
            shares = (z @ marks.t()).softmax(dim=-1)
            return self.lin(torch.cat([self.conv(z, data.edge_index), shares @ marks], dim=-1))

    torch.manual_seed(0)
    return trained(data, ddp, Model())


def gradients_with_respect_to_embeddings(data: Data, ddp: Ddp) -> Results:
    """Adversarial perturbation: the sign of the gradient of x, then a step on both losses."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        perturb = torch.zeros_like(data.x).uniform_(-0.0, 0.0).requires_grad_()
        for _ in range(2):
            loss = supervised(model(data.x + perturb, data.edge_index), data)
            (grad,) = torch.autograd.grad(loss, perturb)
            perturb.data = perturb.detach() + 0.05 * grad.sign()
        optimizer.zero_grad()
        loss = supervised(model(data.x + perturb, data.edge_index), data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {'losses': losses, 'perturb': perturb, 'grad': perturb.grad, 'weights': weights(model)}


def flag_accumulates(data: Data, ddp: Ddp) -> Results:
    """FLAG: ascents on a perturbation, gradients of the model added up meanwhile."""
    torch.manual_seed(0)
    model = ddp(attentive_net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        perturb = torch.full_like(data.x, 0.01).requires_grad_()
        loss = supervised(model(data.x + perturb, data.edge_index), data) / 3
        for _ in range(2):
            loss.backward()
            step = perturb.detach() + 1e-2 * torch.sign(perturb.grad.detach())
            perturb.data = step.data
            perturb.grad[:] = 0
            loss = supervised(model(data.x + perturb, data.edge_index), data) / 3
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {'losses': losses, 'weights': weights(model)}


def attentive_net() -> Module:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = GINConv(Sequential(Linear(6, 8, bias=False), BatchNorm1d(8)))
            self.conv2 = GATv2Conv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    return Model().double()


def gradients_scaled_by_hooks(data: Data, ddp: Ddp) -> Results:
    """Hooks of hidden rows that scale by the norm of all; hooks of parameters; retained ones."""
    torch.manual_seed(0)
    conv1, conv2 = GCNConv(6, 8).double(), GCNConv(8, 3).double()
    model = ddp(ModuleList([conv1, conv2]))
    parts = list(getattr(model, 'module', model))
    norms: list[float] = []

    def scaled(grad: Tensor) -> Tensor:
        norms.append(grad.norm().item())
        return grad / (grad.norm() + 1e-6)

    parts[1].lin.weight.register_hook(lambda g: g * 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        h = parts[0](data.x, data.edge_index)
        h.retain_grad()
        h.register_hook(scaled)
        loss = supervised(parts[1](h.relu(), data.edge_index), data)
        loss.backward()
        optimizer.step()
    return {'norms': norms, 'grad': h.grad, 'weights': weights(model)}


def per_class_gradients_projected(data: Data, ddp: Ddp) -> Results:
    """PCGrad: gradients of three losses, each without what conflicts with the others."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())
    parameters = list(model.parameters())
    cosines = []
    for _ in range(2):
        out = model(data.x, data.edge_index)
        grads = []
        for c in range(3):
            mask = data.train_mask & (data.y == c)
            loss = F.cross_entropy(out[mask], data.y[mask])
            found = torch.autograd.grad(loss, parameters, retain_graph=True)
            grads.append(torch.cat([g.view(-1) for g in found]))
        total = torch.zeros_like(grads[0])
        for i, g in enumerate(grads):
            for j, other in enumerate(grads):
                dot = g @ other
                if i != j:
                    cosines.append(dot.item())
                if i != j and dot < 0:
                    g = g - dot / other.norm() ** 2 * other
            total += g
        with torch.no_grad():
            for p, g in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
                p -= 0.1 * g.view_as(p)
    return {'cosines': cosines, 'weights': weights(model)}


def fisher_by_squares(data: Data, ddp: Ddp) -> Results:
    """EWC: squares of gradients of a first task keep the weights of a second one."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())
    first, second = data.train_mask & (data.y < 1), data.train_mask & (data.y >= 1)
    losses = descend(
        lambda: F.cross_entropy(model(data.x, data.edge_index)[first], data.y[first]), model
    )
    model.zero_grad()
    F.cross_entropy(model(data.x, data.edge_index)[first], data.y[first]).backward()
    fisher = {n: p.grad.detach() ** 2 for n, p in model.named_parameters()}
    old = {n: p.detach().clone() for n, p in model.named_parameters()}

    def loss_of() -> Tensor:
        loss = F.cross_entropy(model(data.x, data.edge_index)[second], data.y[second])
        kept = sum((fisher[n] * (p - old[n]) ** 2).sum() for n, p in model.named_parameters())
        return loss + 100 * kept

    losses += descend(loss_of, model)
    return {'losses': losses, 'weights': weights(model)}


@by_order
def drawn_rows_of_many_kinds(data: Data, ddp: Ddp) -> Results:
    """Gumbel noise, masks by rand, multinomial picks, normal noise scaled by rows."""
    torch.manual_seed(0)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2, self.gate = GCNConv(6, 8), GCNConv(8, 3), Linear(8, 2)

        def forward(self, data: Data) -> Tensor:
            h = self.conv1(data.x, data.edge_index)
            logits = self.gate(h)
            gumbel = -torch.empty_like(logits).exponential_().log()
            gate = ((logits + gumbel) / 0.7).softmax(dim=-1)
            h = h * gate[:, :1] + torch.randn_like(h) * 0.01 * h.std(dim=0)
            keep = torch.rand_like(h) < 0.9
            h = h * keep + torch.rand(h.size(0), 1, dtype=h.dtype) * 0.01
            return self.conv2(h, data.edge_index)

    model = ddp(Model().double())
    losses = descend(lambda: supervised(model(data), data), model)
    pick = torch.multinomial(torch.ones(data.num_nodes), 7)
    return {'losses': losses, 'picked': data.x[pick], 'weights': weights(model)}


@by_order
def links_drawn_in_every_step(data: Data, ddp: Ddp) -> Results:
    """Messages along a half of the edges, the other half is to be found; attributes go along."""
    torch.manual_seed(0)
    random.seed(0)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.mlp = GraphConv(6, 8), Linear(8, 1)
            self.edge = Sequential(Linear(4, 6), torch.nn.ReLU(), Linear(6, 1))

        def forward(self, x: Tensor, e: Tensor, attr: Tensor, ends: Tensor) -> Tensor:
            z = self.conv(x, e, self.edge(attr).sigmoid().view(-1)).relu()
            return self.mlp(z[ends[0]] * z[ends[1]]).view(-1)

    model = ddp(Model().double())

    def loss_of() -> Tensor:
        perm = torch.randperm(data.num_edges)
        kept, asked = perm[: data.num_edges // 2], perm[data.num_edges // 2 :]
        e = data.edge_index[:, kept]
        wrong = negative_sampling(data.edge_index, data.num_nodes, asked.numel())
        ends = torch.cat([data.edge_index[:, asked], wrong], dim=1)
        target = torch.cat([torch.ones(asked.numel()), torch.zeros(wrong.size(1))]).double()
        out = model(data.x, e, data.edge_attr[kept], ends)
        return F.binary_cross_entropy_with_logits(out, target)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def dynamic_edges_of_rings(data: Data, ddp: Ddp) -> Results:
    """Edges made from ids: a ring and jumps, joined to the given ones, with types and EdgeConv."""
    torch.manual_seed(0)
    n = data.num_nodes
    ids = torch.arange(n)
    ring = torch.stack([ids, (ids + 1) % n])
    jumps = torch.stack([ids, (ids * 3) % n])
    both = torch.cat([data.edge_index, ring, jumps], dim=1)
    weight = torch.cat([data.edge_weight, torch.full((2 * n,), 0.5, dtype=torch.double)])
    looped, _ = add_self_loops(ring, num_nodes=n)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = GCNConv(6, 8)
            self.conv2 = EdgeConv(Sequential(Linear(16, 8), torch.nn.Tanh()), aggr='max')
            self.lin = Linear(8, 3)

        def forward(self, data: Data) -> Tensor:
            h = self.conv1(data.x, both, weight).tanh()
            return self.lin(self.conv2(h, looped))

    return trained(data, ddp, Model())


def frozen_statistics_after_warming_up(data: Data, ddp: Ddp) -> Results:
    """Running statistics from a pass without gradients, then training in evaluation mode."""
    torch.manual_seed(0)
    model = ddp(attentive_net())
    with torch.no_grad():
        for _ in range(3):
            model(data.x, data.edge_index)
    model.eval()
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    model.train()
    losses += descend(lambda: supervised(model(data.x, data.edge_index), data), model, steps=1)
    return {'losses': losses, 'weights': weights(model)}


def accumulated_without_sync(data: Data, ddp: Ddp) -> Results:
    """no_sync where the wrapper has it; the last of three backwards is a usual one."""
    from contextlib import nullcontext

    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for step in range(3):
            quiet = step < 2 and hasattr(model, 'no_sync')
            with model.no_sync() if quiet else nullcontext():
                out = model(data.x * (1 + 0.1 * step), data.edge_index)
                (supervised(out, data) / 3).backward()
        optimizer.step()
    return {'weights': weights(model)}


@by_order
def column_masks_and_blocks(data: Data, ddp: Ddp) -> Results:
    """Columns dropped by masks and lists, blocks written from other rows, numbers by masks."""
    torch.manual_seed(0)
    x = data.x.clone()
    x[:, torch.tensor([True, False, False, True, False, False])] = 0
    x[:, [1, 2]] = data.x[:, [4, 5]]
    x[:, torch.tensor([4])] += 1
    x[x > 2] = x[x > 2] * 0.5
    x[x < 0] = -1.0
    x[data.y == 1, :2] = x[data.y == 1, 4:]
    x[:, 5] = torch.arange(data.num_nodes, dtype=torch.double).cos()
    w = torch.ones_like(x).requires_grad_()
    z = x * w
    z[:, torch.tensor([0, 3])] = (z[:, :2] * 2).tanh()
    z[z > 1] = z[z > 1].log()
    z.sum().backward()
    return {'x': x, 'z': z, 'grad': w.grad}
