"""What papers' code does around the convs: teachers, label tricks, propagation, several losses."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, Parameter
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    MLP,
    GATConv,
    GCNConv,
    SAGEConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.aggr import SoftmaxAggregation, StdAggregation
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    dropout_edge,
    k_hop_subgraph,
    scatter,
    subgraph,
    to_dense_adj,
    to_torch_coo_tensor,
    to_torch_csr_tensor,
)


class NormedNet(Module):
    """GCN, batch norm, GCN; gives hidden rows too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 8, bias=False), GCNConv(8, 3)
        self.bn = BatchNorm1d(8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.bn(self.conv1(x, edge_index)).relu(), edge_index)


def supervised(out: Tensor, data: Data) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


@by_order
def mean_teacher(data: Data, ddp: Ddp) -> Results:
    """A copy moved after the student, its norm in training; consistency on all nodes."""
    torch.manual_seed(0)
    student = ddp(NormedNet().double())
    teacher = copy.deepcopy(getattr(student, 'module', student))
    for p in teacher.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        noisy = data.x + 0.1 * torch.randn_like(data.x)
        out = student(noisy, data.edge_index)
        with torch.no_grad():
            soft = teacher(data.x, data.edge_index).softmax(-1)
        loss = supervised(out, data) + F.mse_loss(out.softmax(-1), soft)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        inner = getattr(student, 'module', student)
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), inner.parameters(), strict=True):
                p.mul_(0.9).add_(q, alpha=0.1)
        losses.append(loss.item())
    return {'losses': losses, 'weights': weights(student), 'teacher': weights(teacher)}


@by_order
def bgrl(data: Data, ddp: Ddp) -> Results:
    """Bootstrapped: augmentations in place, two views through one model, a predictor."""
    torch.manual_seed(0)

    class Encoder(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = GCNConv(6, 8, bias=False), BatchNorm1d(8, momentum=0.01)
            self.act = torch.nn.PReLU()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.act(self.bn(self.conv(x, edge_index)))

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.predictor = Encoder(), MLP([8, 8, 8], norm='batch_norm')
            self.target = copy.deepcopy(self.online)
            for p in self.target.parameters():
                p.requires_grad = False

        def forward(self, x1: Tensor, e1: Tensor, x2: Tensor, e2: Tensor) -> Tensor:
            q1, q2 = self.predictor(self.online(x1, e1)), self.predictor(self.online(x2, e2))
            with torch.no_grad():
                y1, y2 = self.target(x1, e1), self.target(x2, e2)
            first = F.cosine_similarity(q1, y2.detach(), dim=-1).mean()
            return 2 - first - F.cosine_similarity(q2, y1.detach(), dim=-1).mean()

    model = ddp(Model().double())
    inner = getattr(model, 'module', model)

    def augmented(p: float) -> tuple[Tensor, Tensor]:
        x = data.x.clone()
        x[:, torch.rand(x.size(1)) < p] = 0
        return x, dropout_edge(data.edge_index, p=p)[0]

    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=1e-3
    )
    losses = []
    for _ in range(3):
        loss = model(*augmented(0.3), *augmented(0.2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for p, q in zip(inner.target.parameters(), inner.online.parameters(), strict=True):
            p.data.mul_(0.99).add_(q.data, alpha=0.01)
        losses.append(loss.item())
    return {'losses': losses, 'weights': weights(model)}


@by_order
def infomax_by_hand(data: Data, ddp: Ddp) -> Results:
    """DGI: rows shuffled by randperm, a bilinear discriminator, lists of ones and zeros."""
    torch.manual_seed(0)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.gcn, self.disc = GCNConv(6, 8), torch.nn.Bilinear(8, 8, 1)

        def forward(self, x: Tensor, shuffled: Tensor, edge_index: Tensor) -> Tensor:
            h1, h2 = self.gcn(x, edge_index).relu(), self.gcn(shuffled, edge_index).relu()
            c = h1.mean(0).sigmoid().expand_as(h1).contiguous()
            return torch.cat([self.disc(h1, c), self.disc(h2, c)], 1)

    model = ddp(Model().double())
    labels = torch.cat([torch.ones(data.num_nodes, 1), torch.zeros(data.num_nodes, 1)], 1).double()

    def loss_of() -> Tensor:
        idx = torch.randperm(data.num_nodes)
        logits = model(data.x, data.x[idx], data.edge_index)
        return F.binary_cross_entropy_with_logits(logits, labels)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def label_propagation_residuals(data: Data, ddp: Ddp) -> Results:
    """A MLP, then its errors spread and its predictions smoothed, by sparse matrices."""
    torch.manual_seed(0)
    model = ddp(mlp(6, 8, 3).double())
    losses = descend(lambda: supervised(model(data.x), data), model)
    edge_index, _ = add_remaining_self_loops(data.edge_index, num_nodes=data.num_nodes)
    row, col = edge_index
    deg = degree(col, data.num_nodes, dtype=torch.double)
    dis = deg.pow(-0.5)
    dis[torch.isinf(dis)] = 0
    with torch.no_grad():
        soft = model(data.x).softmax(-1)
        error = torch.zeros_like(soft)
        error[data.train_mask] = (
            F.one_hot(data.y[data.train_mask], 3).double() - soft[data.train_mask]
        )
        for _ in range(5):
            spread = scatter((dis[row] * dis[col]).unsqueeze(-1) * error[row], col, 0, deg.size(0))
            error = 0.8 * spread + 0.2 * error
            error.clamp_(-1, 1)
        sigma = error[data.train_mask].abs().sum() / data.train_mask.sum()
        scale = sigma / error.abs().sum(dim=1, keepdim=True)
        scale[scale.isinf() | (scale > 1000)] = 1.0
        out = soft + scale * error
    return {'losses': losses, 'out': out, 'pred': out.argmax(-1)}


def personalised_page_rank_in_the_model(data: Data, ddp: Ddp) -> Results:
    """APPNP's authors: ten steps with dropout of nothing, after a MLP in which layers are tied."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin1, self.lin2 = Linear(6, 6), Linear(6, 3)
            self.alpha = Parameter(torch.full((4,), 0.25))

        def forward(self, x: Tensor, adj: Tensor) -> Tensor:
            h = z = self.lin2(self.lin1(self.lin1(x).relu()).relu())
            for a in self.alpha.softmax(0).unbind():
                z = (1 - a) * (adj @ z) + a * h
            return z

    torch.manual_seed(0)
    model = ddp(Model().double())
    edge_index, weight = add_remaining_self_loops(
        data.edge_index, data.edge_weight, fill_value=1.0, num_nodes=data.num_nodes
    )
    deg = scatter(weight, edge_index[1], 0, data.num_nodes, reduce='sum')
    weight = deg[edge_index[0]].rsqrt() * weight * deg[edge_index[1]].rsqrt()
    adj = to_torch_coo_tensor(edge_index, weight, size=data.num_nodes).t()
    losses = descend(lambda: supervised(model(data.x, adj), data), model)
    return {'losses': losses, 'weights': weights(model)}


def simple_convolution_before_training(data: Data, ddp: Ddp) -> Results:
    """SGC and SIGN: powers of a CSR matrix, joined, and a linear model."""
    torch.manual_seed(0)
    edge_index, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
    deg = degree(edge_index[1], data.num_nodes, dtype=torch.double)
    value = 1 / deg[edge_index[1]]
    adj = to_torch_csr_tensor(edge_index.flip(0), value, size=(data.num_nodes, data.num_nodes))
    xs = [data.x]
    for _ in range(3):
        xs.append(adj @ xs[-1])
    x = torch.cat(xs, dim=-1)
    x = (x - x.mean(0)) / x.std(0)
    model = ddp(Linear(24, 3).double())
    losses = descend(lambda: supervised(model(x), data), model)
    return {'losses': losses, 'x': x, 'weights': weights(model)}


def features_propagated_where_missing(data: Data, ddp: Ddp) -> Results:
    """Feature propagation: unknown entries are filled by neighbours, known ones are kept."""
    torch.manual_seed(0)
    known = data.x > 1.2
    x = torch.where(known, data.x, torch.zeros_like(data.x))
    row, col = data.edge_index
    deg = degree(col, data.num_nodes, dtype=data.x.dtype).clamp(min=1)
    out = x.clone()
    for _ in range(4):
        out = torch.zeros_like(x).index_add_(0, col, out[row]) / deg[:, None]
        out[known] = x[known]
    model = ddp(Net(6, 8, 3).double())
    losses = descend(lambda: supervised(model(out, data.edge_index), data), model)
    return {'losses': losses, 'out': out}


@by_order
def features_changed_in_place(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    data.x[data.test_mask] = 0
    data.x[data.val_mask, 1:3] = -1.0
    data.x.add_(0.5).mul_(data.x > 0)
    data.x.masked_fill_(data.x > 3, 3.0)
    data.x[:, 0] = degree(data.edge_index[0], data.num_nodes, dtype=data.x.dtype)
    data.x[5] = 1.5
    data.x /= data.x.sum(1, keepdim=True).clamp_(min=1.0)
    data.y[data.y == 2] = 1
    model = ddp(NormedNet().double())
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    return {'losses': losses, 'x': data.x, 'weights': weights(model)}


def two_models_share_an_encoder(data: Data, ddp: Ddp) -> Results:
    """One encoder in two wrapped models, a learned temperature outside of both."""
    torch.manual_seed(0)
    encoder = GCNConv(6, 8).double()

    class Head(Module):
        def __init__(self, num: int) -> None:
            super().__init__()
            self.encoder, self.lin = encoder, Linear(8, num).double()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lin(self.encoder(x, edge_index).relu())

    first, second = ddp(Head(3)), ddp(Head(6))
    parameters = {id(p): p for m in (first, second) for p in m.parameters()}.values()

    def loss_of() -> Tensor:
        loss = supervised(first(data.x, data.edge_index), data)
        return loss + 0.1 * F.mse_loss(second(data.x, data.edge_index), data.x)

    losses = descend(loss_of, list(parameters))
    return {'losses': losses, 'first': weights(first), 'second': weights(second)}


def temperature_outside_of_the_model(data: Data, ddp: Ddp) -> Results:
    """Calibration: the model is frozen, one number learns on the validation nodes."""
    torch.manual_seed(0)
    model = ddp(NormedNet().double())
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    model.eval()
    temperature = Parameter(torch.ones(1, dtype=torch.double) * 1.5)
    with torch.no_grad():
        logits = model(data.x, data.edge_index)
    optimizer = torch.optim.SGD([temperature], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits[data.val_mask] / temperature, data.y[data.val_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {'losses': losses, 'temperature': temperature}


def called_twice_on_other_features(data: Data, ddp: Ddp) -> Results:
    """Clean and noisy features in one step; running statistics see both."""
    torch.manual_seed(0)
    model = ddp(NormedNet().double())

    def loss_of() -> Tensor:
        clean = model(data.x, data.edge_index)
        other = model(data.x.flip(1) * 0.5, data.edge_index)
        kl = F.kl_div(other.log_softmax(-1), clean.softmax(-1), reduction='batchmean')
        return supervised(clean, data) + kl

    losses = descend(loss_of, model)
    model.eval()
    return {'losses': losses, 'out': model(data.x, data.edge_index), 'weights': weights(model)}


def evaluation_between_the_steps(data: Data, ddp: Ddp) -> Results:
    """PyG's example: train(), test(), the best by validation, a scheduler, and its state kept."""
    torch.manual_seed(0)
    model = ddp(NormedNet().double())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode='max', patience=0)

    @torch.no_grad()
    def test() -> list[float]:
        model.eval()
        pred = model(data.x, data.edge_index).argmax(dim=-1)
        masks = data.train_mask, data.val_mask, data.test_mask
        return [int((pred[m] == data.y[m]).sum()) / int(m.sum()) for m in masks]

    best, kept, history, patience = 0.0, None, [], 0
    for _ in range(6):
        model.train()
        optimizer.zero_grad()
        loss = supervised(model(data.x, data.edge_index), data)
        loss.backward()
        optimizer.step()
        accs = test()
        scheduler.step(accs[1])
        history.append([float(loss), *accs, optimizer.param_groups[0]['lr']])
        patience += 1
        if accs[1] > best:
            best, kept, patience = accs[1], copy.deepcopy(model.state_dict()), 0
        if patience == 3:
            break
    model.load_state_dict(kept)
    return {'history': history, 'best': best, 'final': test(), 'weights': weights(model)}


def clipped_and_accumulated(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(NormedNet().double())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=4)
    norms = []
    masks = [data.train_mask & (data.y == c) for c in range(3)]
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        for mask in masks:
            loss = F.cross_entropy(model(data.x, data.edge_index)[mask], data.y[mask])
            (loss / len(masks)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
        scheduler.step()
    return {'norms': norms, 'weights': weights(model)}


def surrogate_gradient(data: Data, ddp: Ddp) -> Results:
    """A spiking function: a step forward, a smooth gradient back, with the mean of the batch."""

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
            ctx.save_for_backward(x, slope)
            return (x > x.mean()).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, slope = ctx.saved_tensors
            s = torch.sigmoid(slope * (x - x.mean()))
            return grad * slope * s * (1 - s), (grad * x * s * (1 - s)).sum().view(1)

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = GCNConv(6, 8), GCNConv(8, 3)
            self.slope = Parameter(torch.ones(1))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(Spike.apply(self.conv1(x, edge_index), self.slope), edge_index)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    return {'losses': losses, 'weights': weights(model)}


def domain_adversary(data: Data, ddp: Ddp) -> Results:
    """Gradient reversal: which split a node is of must not be told from its embedding."""

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return grad.neg() * ctx.alpha, None

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.cls, self.domain = SAGEConv(6, 8), Linear(8, 3), Linear(8, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            z = self.conv(x, edge_index).relu()
            return self.cls(z), self.domain(Reversed.apply(z, 0.3))

    torch.manual_seed(0)
    model = ddp(Model().double())

    def loss_of() -> Tensor:
        out, domain = model(data.x, data.edge_index)
        return supervised(out, data) + F.cross_entropy(domain, data.test_mask.long())

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@dataclass
class Output:
    """What the model of many heads gives."""

    logits: list[Tensor]
    hidden: Tensor
    loss: Tensor | None = None


def heads_in_a_dataclass(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = ModuleList([GATConv(6, 4, heads=2), GATConv(8, 8)])
            self.heads = ModuleList([Linear(8, 3) for _ in range(3)])

        def forward(self, data: Data) -> Output:
            x = data.x
            for conv in self.body:
                x = F.elu(conv(x, data.edge_index))
            logits = [head(x) for head in self.heads]
            mean = torch.stack(logits).mean(0)
            spread = sum((each - mean).pow(2).mean() for each in logits)
            return Output(logits, x, supervised(mean, data) - 0.01 * spread)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: model(data).loss, model)
    out = model(data)
    return {'losses': losses, 'hidden': out.hidden, 'logits': out.logits, 'weights': weights(model)}


@by_order
def readouts_of_several_graphs(data: Data, ddp: Ddp) -> Results:
    """Nodes belong to four graphs by a batch vector made from the ids; a label for each graph."""
    torch.manual_seed(0)
    batch = torch.arange(data.num_nodes) % 4
    labels = torch.tensor([0, 1, 2, 1])

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin = GCNConv(6, 8), Linear(40, 3)
            self.soft, self.std = SoftmaxAggregation(learn=True), StdAggregation()

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.conv(x, edge_index).relu()
            pools = [p(x, batch) for p in (global_mean_pool, global_max_pool, global_add_pool)]
            return self.lin(torch.cat([*pools, self.soft(x, batch), self.std(x, batch)], dim=1))

    model = ddp(Model().double())
    losses = descend(
        lambda: F.cross_entropy(model(data.x, data.edge_index, batch), labels), model, lr=0.01
    )
    return {'losses': losses, 'weights': weights(model)}


def pooled_by_class_and_normed(data: Data, ddp: Ddp) -> Results:
    """A readout by label goes back to its nodes; the number of graphs is not given."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.lin = GCNConv(6, 8), BatchNorm1d(8), Linear(16, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.conv(x, edge_index)
            pooled = self.bn(global_mean_pool(x, batch))
            return self.lin(torch.cat([x, pooled[batch]], dim=-1))

    torch.manual_seed(0)
    model = ddp(Model().double())
    batch = (data.x[:, 0] > 1.5).long() + 2 * (data.x[:, 1] > 1.5).long()
    losses = descend(lambda: supervised(model(data.x, data.edge_index, batch), data), model)
    return {'losses': losses, 'weights': weights(model)}


@by_order
def edges_weighted_anew_every_epoch(data: Data, ddp: Ddp) -> Results:
    """Weights by similarity of what the last epoch gave, and a mask of edges by bernoulli."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 3).double())
    inner = getattr(model, 'module', model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight, losses = None, []

    class Weighted(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = inner

        def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor | None) -> Tensor:
            x = self.net.conv1(x, edge_index, weight).relu()
            return self.net.conv2(x, edge_index, weight)

    model = ddp(Weighted())
    for _ in range(3):
        keep = torch.bernoulli(torch.full((data.num_edges,), 0.7)).bool()
        edge_index = data.edge_index[:, keep]
        out = model(data.x, edge_index, None if weight is None else weight[keep])
        loss = supervised(out, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            z = F.normalize(out, dim=-1)
            row, col = data.edge_index
            weight = (z[row] * z[col]).sum(-1).clamp(min=0) + 0.1
        losses.append(loss.item())
    return {'losses': losses, 'weight': weight, 'weights': weights(model)}


def positions_by_landing_probabilities(data: Data, ddp: Ddp) -> Results:
    """Random walk positions by a dense matrix, added to the features after loading."""
    torch.manual_seed(0)
    adj = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].double()
    walk = adj / adj.sum(1, keepdim=True).clamp(min=1)
    power, found = walk, []
    for _ in range(3):
        found.append(power.diagonal())
        power = power @ walk
    pe = torch.stack(found, dim=-1)
    model = ddp(Net(9, 8, 3).double())
    x = torch.cat([data.x, pe], dim=-1)
    losses = descend(lambda: supervised(model(x, data.edge_index), data), model)
    return {'losses': losses, 'pe': pe}


def hops_around_training_nodes(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    seeds = data.train_mask.nonzero().view(-1)
    subset, edge_index, mapping, mask = k_hop_subgraph(
        seeds, 1, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes
    )
    model = ddp(Net(6, 8, 3).double())
    x, y = data.x[subset], data.y[subset]

    def loss_of() -> Tensor:
        out = model(x, edge_index)
        return F.cross_entropy(out[mapping], y[mapping])

    return {'losses': descend(loss_of, model), 'mask': mask, 'size': subset.numel()}


def learned_on_a_subgraph(data: Data, ddp: Ddp) -> Results:
    """Inductive: the training graph alone in training, the whole one in evaluation."""
    torch.manual_seed(0)
    edge_index, weight = subgraph(
        data.train_mask, data.edge_index, data.edge_weight, num_nodes=data.num_nodes
    )
    conv = GCNConv(6, 3).double()
    model = ddp(conv)
    losses = descend(lambda: supervised(model(data.x, edge_index, weight), data), model)
    with torch.no_grad():
        out = model(data.x, data.edge_index, data.edge_weight)
    return {'losses': losses, 'out': out, 'edges': edge_index.size(1)}


def mask_of_nothing(data: Data, ddp: Ddp) -> Results:
    """A class without nodes, a mask without nodes, sums over them, and a guard."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 4).double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        loss = supervised(out, data)
        for c in range(4):
            mask = data.train_mask & (data.y == c)
            if mask.any():
                loss = loss + 0.1 * F.cross_entropy(out[mask], data.y[mask])
            loss = loss + out[mask].pow(2).sum() * 1e-3
        return loss

    empty = data.y == 3
    return {
        'losses': descend(loss_of, model),
        'rows': data.x[empty].size(0),
        'sum': data.x[empty].sum(0),
        'weights': weights(model),
    }


def numbers_of_other_kinds(data: Data, ddp: Ddp) -> Results:
    """Halves, ints, bools and complex numbers made from features, and their sums."""
    torch.manual_seed(0)
    x = data.x
    phase = torch.polar(x.abs() + 0.1, x)
    row, col = data.edge_index
    moved = torch.zeros_like(phase).index_add_(0, col, phase[row])
    ints = (x * 10).long()
    feats = torch.cat(
        [
            moved.real,
            moved.imag,
            moved.abs(),
            (x > 1).double(),
            (ints % 7).double(),
            ints.bitwise_and(3).double(),
            x.to(torch.float16).double(),
        ],
        dim=1,
    )
    model = ddp(Net(42, 8, 3).double())
    losses = descend(lambda: supervised(model(feats, data.edge_index), data), model, lr=1e-3)
    return {
        'losses': losses,
        'feats': feats,
        'any': (x > 4).any(0),
        'all': (x > -9).all().item(),
        'mean': phase.mean(0).abs(),
        'ints': ints.sum(0),
    }


def hidden_state_between_steps(data: Data, ddp: Ddp) -> Results:
    """Recurrent: what a step gave goes into the next, detached; gradients through two of them."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.cell, self.lin = GCNConv(6, 8), torch.nn.GRUCell(8, 8), Linear(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, h: Tensor | None = None) -> Any:
            h = self.cell(self.conv(x, edge_index).tanh(), h)
            return self.lin(h), h

    torch.manual_seed(0)
    model = ddp(Model().double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    h, losses = None, []
    for step in range(3):
        out, h = model(data.x * (1 + step), data.edge_index, h)
        again, h = model(data.x, data.edge_index, h)
        loss = supervised(out, data) + supervised(again, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        h = h.detach()
        losses.append(loss.item())
    return {'losses': losses, 'h': h, 'weights': weights(model)}


def propagation_inside_of_the_head(data: Data, ddp: Ddp) -> Results:
    """APPNP after a MLP with norms whose last norm is frozen by a flag."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = MLP([6, 8, 8, 3], norm='batch_norm', plain_last=False)
            self.prop = APPNP(3, 0.2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.prop(self.mlp(x), edge_index)

    torch.manual_seed(0)
    model = ddp(Model().double())
    inner = getattr(model, 'module', model)
    inner.mlp.norms[-1].requires_grad_(False)
    losses = descend(
        lambda: supervised(model(data.x, data.edge_index), data),
        [p for p in model.parameters() if p.requires_grad],
    )
    model.eval()
    return {'losses': losses, 'out': model(data.x, data.edge_index), 'weights': weights(model)}


def ranks_and_ties(data: Data, ddp: Ddp) -> Results:
    """argmax and max where many are alike, sorted values, modes, thresholds by kthvalue."""
    torch.manual_seed(0)
    x = data.x.round().clamp(0, 2).requires_grad_()
    top = x.amax(0).sum() + x.amin(0).sum() + x.max() + x.median()
    (grad,) = torch.autograd.grad(top, x)
    values = x.detach()
    return {
        'unique': values.unique(return_counts=True),
        'kth': values[:, 0].kthvalue(20).values,
        'mode': values.mode(dim=0).values,
        'columns': grad.sum(0)[:0],
        'bins': torch.histc(values, 4, 0, 2),
    }
