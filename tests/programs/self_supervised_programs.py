"""Training without labels: views of the graph against each other, teachers, summaries."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import DeepGraphInfomax


def views(data: Data) -> tuple[Tensor, Tensor]:
    """Two views of the features, without draws."""
    return data.x * (torch.arange(6) % 3 != 0), data.x * (torch.arange(6) % 3 != 1)


def grace(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 5).double())
    head = ddp(mlp(5, 5, 5).double())

    def half(a: Tensor, b: Tensor) -> Tensor:
        within, between = torch.exp(a @ a.t() / 0.5), torch.exp(a @ b.t() / 0.5)
        return -torch.log(between.diag() / (within.sum(1) + between.sum(1) - within.diag()))

    def loss_of() -> Tensor:
        a, b = (F.normalize(head(model(x, data.edge_index))) for x in views(data))
        return ((half(a, b) + half(b, a)) * 0.5).mean()

    losses = descend(loss_of, [*model.parameters(), *head.parameters()])
    return {'losses': losses, 'weights': weights(model), 'head': weights(head)}


def info_nce_by_cross_entropy(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 5).double())

    def loss_of() -> Tensor:
        a, b = (F.normalize(model(x, data.edge_index)) for x in views(data))
        return F.cross_entropy(a @ b.t() / 0.2, torch.arange(a.size(0)))

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def contrast_with_a_summary(data: Data, ddp: Ddp) -> Results:
    """InfoNCE of every node against the mean of all, without pairs of nodes."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 5).double())

    def loss_of() -> Tensor:
        a, b = (F.normalize(model(x, data.edge_index)) for x in views(data))
        pos = (a * b).sum(-1)
        return -(pos - (a @ b.mean(dim=0)).exp().mean().log()).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def bootstrapped(data: Data, ddp: Ddp) -> Results:
    """BGRL: a predictor, and a teacher that is a moving average."""
    torch.manual_seed(0)
    student = Net(6, 8, 5).double()
    teacher = ddp(copy.deepcopy(student)).requires_grad_(False)
    student, predictor = ddp(student), ddp(mlp(5, 8, 5).double())
    optimizer = torch.optim.SGD([*student.parameters(), *predictor.parameters()], lr=0.1)
    losses = []
    for _ in range(3):
        a, b = views(data)
        with torch.no_grad():
            target = teacher(b, data.edge_index)
        optimizer.zero_grad()
        guess = predictor(student(a, data.edge_index))
        loss = 2 - 2 * F.cosine_similarity(guess, target, dim=-1).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        losses.append(loss.item())
    return {'losses': losses, 'student': weights(student), 'teacher': weights(teacher)}


def canonical_correlation(data: Data, ddp: Ddp) -> Results:
    """CCA-SSG: both views standardised over all nodes, correlations made the identity."""
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 5).double())
    num = data.num_nodes

    def loss_of() -> Tensor:
        a, b = (model(x, data.edge_index) for x in views(data))
        a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
        c, c1, c2 = (torch.mm(p.T, q) / num for p, q in ((a, b), (a, a), (b, b)))
        eye = torch.eye(5, dtype=torch.double)
        return -c.diagonal().sum() + 1e-2 * ((eye - c1).pow(2).sum() + (eye - c2).pow(2).sum())

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def barlow_twins(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(6, 8, 5).double())
    norm = torch.nn.BatchNorm1d(5, affine=False, track_running_stats=False).double()
    norm = ddp(norm)

    def loss_of() -> Tensor:
        a, b = (norm(model(x, data.edge_index)) for x in views(data))
        c = a.T @ b / data.x.size(0)
        on = (torch.diagonal(c) - 1).pow(2).sum()
        return on + 0.1 * (c.flatten().pow(2).sum() - torch.diagonal(c).pow(2).sum())

    return {'losses': descend(loss_of, model, 0.01), 'weights': weights(model)}


class Infomax(Module):
    """DGI by hand: a summary is the sigmoid of the mean of all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.weight = Net(6, 8, 5), Parameter(torch.randn(5, 5) / 5)

    def forward(self, x: Tensor, wrong: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        pos, neg = self.encoder(x, edge_index), self.encoder(wrong, edge_index)
        summary = self.weight @ torch.sigmoid(pos.mean(dim=0))
        return pos @ summary, neg @ summary


def infomax_of_shifted_columns(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Infomax().double())

    def loss_of() -> Tensor:
        pos, neg = model(data.x, data.x.flip(1), data.edge_index)
        return F.softplus(-pos).mean() + F.softplus(neg).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def infomax_of_shuffled_rows(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Infomax().double())

    def loss_of() -> Tensor:
        wrong = data.x[torch.randperm(data.num_nodes)]
        logits = torch.cat(model(data.x, wrong, data.edge_index))
        target = torch.cat([torch.ones(data.num_nodes), torch.zeros(data.num_nodes)]).double()
        return F.binary_cross_entropy_with_logits(logits, target)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def infomax_of_pyg(data: Data, ddp: Ddp) -> Results:
    def corruption(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x[torch.randperm(x.size(0))], edge_index

    seed_everything(0)
    model = DeepGraphInfomax(
        hidden_channels=5,
        encoder=Net(6, 8, 5),
        summary=lambda z, *args, **kwargs: z.mean(dim=0).sigmoid(),
        corruption=corruption,
    )
    model = ddp(model.double())
    inner = getattr(model, 'module', model)

    def loss_of() -> Tensor:
        return inner.loss(*model(data.x, data.edge_index))

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def masked_autoencoder(data: Data, ddp: Ddp) -> Results:
    """GraphMAE with a mask that is given: a token in, a scaled cosine error out."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = Parameter(torch.zeros(6))
            self.encoder, self.decoder = Net(6, 8, 5), Linear(5, 6)

        def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
            x = torch.where(mask.unsqueeze(-1), self.token, x)
            h = self.encoder(x, edge_index) * ~mask.unsqueeze(-1)
            return self.decoder(h)

    torch.manual_seed(0)
    model = ddp(Model().double())
    mask = data.val_mask | data.test_mask

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, mask)
        cosine = (F.normalize(out[mask]) * F.normalize(data.x[mask])).sum(-1)
        return (1 - cosine).pow(3).mean()

    return {'losses': descend(loss_of, model, 0.5), 'weights': weights(model)}


def linear_probe(data: Data, ddp: Ddp) -> Results:
    """Embeddings are frozen and standardised; ridge regression in closed form scores them."""
    torch.manual_seed(0)
    z = ddp(Net(6, 8, 5).double())(data.x, data.edge_index).detach()
    z = (z - z[data.train_mask].mean(0)) / z[data.train_mask].std(0)
    a, y = z[data.train_mask], F.one_hot(data.y[data.train_mask], 3).double()
    w = torch.linalg.solve(a.T @ a + torch.eye(5, dtype=torch.double), a.T @ y)
    correct = (z @ w).argmax(-1)[data.test_mask] == data.y[data.test_mask]
    return {'w': w, 'acc': correct.double().mean().item()}


def k_means_of_embeddings(data: Data, ddp: Ddp) -> Results:
    """Lloyd's steps from the class means."""
    torch.manual_seed(0)
    z = ddp(Net(6, 8, 5).double())(data.x, data.edge_index).detach()
    centres = torch.stack([z[data.y == c].mean(0) for c in range(3)])
    for _ in range(4):
        nearest = torch.cdist(z, centres).argmin(dim=1)
        one_hot = F.one_hot(nearest, 3).to(z.dtype)
        centres = one_hot.t() @ z / one_hot.sum(0).clamp(min=1).unsqueeze(1)
    return {'centres': centres, 'nearest': nearest}
