"""Losses of edges, links and pairs of nodes, and of views of the graph without labels."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, mlp, named, parts, programs
from three_steps import descend, fitted, inner, model_of, supervised, trained, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Bilinear, Linear, Module, PReLU
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GAE, MLP, VGAE, GCNConv, GraphConv
from torch_geometric.utils import degree, dropout_edge, negative_sampling, scatter


def weighted_smoothness(out: Tensor, data: Data) -> Tensor:
    row, col = data.edge_index[0], data.edge_index[1]
    difference = torch.norm(out[row] - out[col], p=1, dim=1)
    return supervised(out, data) + (data.edge_weight * difference).mean()


def links_against_random_pairs(z: Tensor, data: Data) -> Tensor:
    neg = torch.randint(0, data.num_nodes, (2, 200))
    pos_out = (z[data.edge_index[0]] * z[data.edge_index[1]]).sum(-1)
    out = torch.cat([pos_out, (z[neg[0]] * z[neg[1]]).sum(-1)])
    target = torch.cat([torch.ones_like(pos_out), torch.zeros(200).double()])
    return F.binary_cross_entropy_with_logits(out, target)


def links_against_negative_sampling(z: Tensor, data: Data) -> Tensor:
    """Sparse, dense and undirected ones; labels of both in one list."""
    neg = negative_sampling(data.edge_index, data.num_nodes, 150)
    more = negative_sampling(data.edge_index, data.num_nodes, data.num_edges, method='dense')
    both = negative_sampling(data.edge_index, force_undirected=True, num_neg_samples=60)
    pairs = torch.cat([data.edge_index, neg, more, both], dim=-1)
    label = torch.zeros(pairs.size(1), dtype=torch.double)
    label[: data.num_edges] = 1
    src, dst = pairs
    return F.binary_cross_entropy_with_logits((z[src] * z[dst]).sum(-1), label)


def corrupted_destinations(z: Tensor, data: Data) -> Tensor:
    """Margin ranking: an edge beats the same source with the mean of all nodes."""
    src, dst = data.edge_index
    pos, neg = (z[src] * z[dst]).sum(-1), z[src] @ z.mean(dim=0)
    return F.margin_ranking_loss(pos, neg, torch.ones_like(pos), margin=1.0)


def agreement_of_ends(out: Tensor, data: Data) -> Tensor:
    """KL divergence between what both ends predict; loops are left out."""
    src, dst = data.edge_index
    real, log_p = src != dst, out.log_softmax(-1)
    kl = F.kl_div(log_p[src][real], log_p[dst][real], log_target=True, reduction='batchmean')
    return supervised(out, data) + 0.1 * kl


def modularity(out: Tensor, data: Data) -> Tensor:
    """DMoN without its dense adjacency: edges within clusters against what degrees expect."""
    src, dst = data.edge_index
    num_edges = data.edge_index.size(1)
    deg, s = degree(dst, data.num_nodes).double(), out.softmax(dim=-1)
    within = (s[src] * s[dst]).sum() / num_edges
    expected = ((deg @ s) ** 2).sum() / num_edges**2
    return expected - within + s.sum(dim=0).norm() * 2 / data.num_nodes - 1


def of_loss(
    data: Data, ddp: Ddp, loss: Callable[[Tensor, Data], Tensor], num_out: int = 3
) -> Results:
    seed_everything(0)  # what negative_sampling of PyG draws from
    return trained(data, ddp, lambda: Net(6, 8, num_out), loss=lambda out: loss(out, data))


PROGRAMS = programs(of_loss, named(weighted_smoothness, agreement_of_ends))
PROGRAMS |= programs(partial(of_loss, num_out=4), named(modularity))
PROGRAMS |= programs(
    partial(of_loss, num_out=5),
    named(links_against_random_pairs, links_against_negative_sampling, corrupted_destinations),
)


def dirichlet_energy(data: Data, ddp: Ddp) -> Results:
    """A metric of oversmoothing, after training."""
    out = trained(data, ddp)['out']
    src, dst = data.edge_index
    h = out / (degree(dst, out.size(0), dtype=out.dtype) + 1).sqrt().unsqueeze(-1)
    energy = 0.5 * (h[src] - h[dst]).square().sum() / out.size(0)
    mad = (1 - F.cosine_similarity(out[src], out[dst])).mean()
    return {'energy': energy.item(), 'mad': mad.item()}


class EdgeMLP(Module):
    """Scores of edges from both ends and the attributes."""

    def __init__(self, num_out: int = 3) -> None:
        super().__init__()
        self.mlp = mlp(6 + 6 + 4, 8, num_out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        row, col = edge_index
        return self.mlp(torch.cat([x[row], x[col], edge_attr], dim=-1))


@parts(net=(Net, 6, 8, 5), out=(Linear, 10, 3), bilinear=(Bilinear, 5, 5, 3))
def ends_(m: Any, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
    """Edges after convs: a linear and a bilinear form of both ends."""
    h = m.net(x, edge_index)
    src, dst = h[edge_index[0]], h[edge_index[1]]
    return m.out(torch.cat([src, dst], dim=1)) + m.bilinear(src, dst)


def on_edges(data: Data, ddp: Ddp, make: Callable[[], Module], train: Tensor) -> Results:
    """Classes of edges, some of which train, by weights of how frequent they are."""
    weight = torch.bincount(data.edge_type).double().reciprocal()

    def loss(out: Tensor) -> Tensor:
        return F.cross_entropy(out[train], data.edge_type[train], weight=weight)

    found = trained(data, ddp, make, data.edge_attr, loss=loss)
    right = found['out'].argmax(-1) == data.edge_type
    acc = right[~train].double().mean().item(), right.sum().item() / data.edge_index.size(1)
    return found | {'acc': acc, 'train': train.sum()}


def edges_split_at_random(data: Data, ddp: Ddp) -> Results:
    return on_edges(data, ddp, ends_, torch.rand(data.edge_index.size(1)) < 0.6)


def links_drawn_in_every_step(data: Data, ddp: Ddp) -> Results:
    """Messages along a half of the edges, the other half is to be found; attributes go along."""
    random.seed(0)

    @parts(conv=(GraphConv, 6, 8), mlp=(Linear, 8, 1), edge=(mlp, 4, 6, 1))
    def net(m: Any, x: Tensor, e: Tensor, attr: Tensor, ends: Tensor) -> Tensor:
        z = m.conv(x, e, m.edge(attr).sigmoid().view(-1)).relu()
        return m.mlp(z[ends[0]] * z[ends[1]]).view(-1)

    model = model_of(ddp, net)

    def loss_of() -> Tensor:
        perm = torch.randperm(data.num_edges)
        kept, asked = perm[: data.num_edges // 2], perm[data.num_edges // 2 :]
        wrong = negative_sampling(data.edge_index, data.num_nodes, asked.numel())
        ends = torch.cat([data.edge_index[:, asked], wrong], dim=1)
        target = torch.cat([torch.ones(asked.numel()), torch.zeros(wrong.size(1))]).double()
        out = model(data.x, data.edge_index[:, kept], data.edge_attr[kept], ends)
        return F.binary_cross_entropy_with_logits(out, target)

    return fitted(loss_of, model)


def node_labels_from_edges(data: Data, ddp: Ddp) -> Results:
    """A node is hit if one of its edges scores highly; the loss is of nodes."""
    target = scatter(data.edge_type, data.edge_index[1], 0, data.num_nodes, 'max') == 2

    def loss(score: Tensor) -> Tensor:
        node = scatter(score.squeeze(-1), data.edge_index[1], 0, data.num_nodes, 'max')
        return F.binary_cross_entropy_with_logits(node, target.double())

    return trained(data, ddp, lambda: EdgeMLP(1), data.edge_attr, loss=loss) | {'target': target}


def edge_type_statistics(data: Data, ddp: Ddp) -> Results:
    """How often every type of edges joins every pair of classes."""
    y_src, y_dst = data.y[data.edge_index]
    table = torch.zeros(3, 3, 3, dtype=torch.long)
    table.index_put_((data.edge_type, y_src, y_dst), torch.tensor(1), accumulate=True)
    mean = torch.stack([data.edge_attr[data.edge_type == t].mean(0) for t in range(3)])
    return {'table': table, 'same': (y_src == y_dst).double().mean().item(), 'mean': mean}


def autoencoders(data: Data, ddp: Ddp) -> Results:
    @parts(conv=(GCNConv, 6, 8), mu=(GCNConv, 8, 4), logstd=(GCNConv, 8, 4))
    def net(m: Any, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = m.conv(x, edge_index).relu()
        return m.mu(h, edge_index), m.logstd(h, edge_index)

    seed_everything(0)
    gae, model = GAE(model_of(ddp, lambda: Net(6, 8, 5))), model_of(ddp, lambda: VGAE(net()))

    def loss_of() -> Tensor:
        plain = gae.recon_loss(gae.encode(data.x, data.edge_index), data.edge_index)
        z = inner(model).encode(data.x, data.edge_index)
        return (
            plain
            + inner(model).recon_loss(z, data.edge_index)
            + inner(model).kl_loss() / data.num_nodes
        )

    losses = descend(loss_of, [*gae.parameters(), *model.parameters()])
    return {'losses': losses, 'gae': weights(gae.encoder), 'vgae': weights(model)}


# Without labels


def bgrl(data: Data, ddp: Ddp) -> Results:
    """Bootstrapped: augmentations in place, two views through one model, a predictor."""

    @parts(
        conv=partial(GCNConv, 6, 8, bias=False),
        bn=partial(BatchNorm1d, 8, momentum=0.01),
        act=PReLU,
    )
    def net(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return m.act(m.bn(m.conv(x, edge_index)))

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.predictor = net(), MLP([8, 8, 8], norm='batch_norm')
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x1: Tensor, e1: Tensor, x2: Tensor, e2: Tensor) -> Tensor:
            q1, q2 = self.predictor(self.online(x1, e1)), self.predictor(self.online(x2, e2))
            with torch.no_grad():
                y1, y2 = self.target(x1, e1), self.target(x2, e2)
            first = F.cosine_similarity(q1, y2.detach(), dim=-1).mean()
            return 2 - first - F.cosine_similarity(q2, y1.detach(), dim=-1).mean()

    model = model_of(ddp, Model)

    def augmented(p: float) -> tuple[Tensor, Tensor]:
        x = data.x.clone()
        x[:, torch.rand(x.size(1)) < p] = 0
        return x, dropout_edge(data.edge_index, p=p)[0]

    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=1e-3
    )
    losses: list[float] = []
    for _ in range(3):
        losses += descend(lambda: model(*augmented(0.3), *augmented(0.2)), optimizer, steps=1)
        pair = inner(model).target.parameters(), inner(model).online.parameters()
        for p, q in zip(*pair, strict=True):
            p.data.mul_(0.99).add_(q.data, alpha=0.01)
    return {'losses': losses, 'weights': weights(model)}
