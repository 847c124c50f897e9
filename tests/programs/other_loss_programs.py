"""Losses that are no plain classification: regression, distances, distillation, regularisers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch.nn import Module, Parameter
from torch_geometric.data import Data

Loss = Callable[[Tensor], Tensor]


def trained(data: Data, ddp: Ddp, loss: Loss, num_out: int = 3, lr: float = 0.05) -> Results:
    """Three steps of a loss of the output."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, num_out).double())
    losses = descend(lambda: loss(model(data.x, data.edge_index)), model, lr)
    return {'losses': losses, 'weights': weights(model)}


def mean_squares(data: Data, ddp: Ddp) -> Results:
    target = data.x[:, :3].sin()
    return trained(data, ddp, lambda out: F.mse_loss(out, target))


def absolute_errors_of_masked(data: Data, ddp: Ddp) -> Results:
    mask = data.train_mask
    return trained(
        data, ddp, lambda out: F.l1_loss(out[mask], data.x[mask, :3], reduction='sum') / 99
    )


def huber(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, lambda out: F.huber_loss(out, data.x[:, 3:], delta=0.5))


def smooth_l1_by_norms(data: Data, ddp: Ddp) -> Results:
    norm = data.x.norm(dim=-1, keepdim=True)
    return trained(data, ddp, lambda out: F.smooth_l1_loss(out, norm / norm.max()), num_out=1)


def targets_standardised(data: Data, ddp: Ddp) -> Results:
    """Mean and deviation of the training targets, taken back for the error."""
    y = data.x.sum(dim=1)
    mean, std = y[data.train_mask].mean(), y[data.train_mask].std()
    result = trained(data, ddp, lambda out: F.mse_loss(out.view(-1), (y - mean) / std), num_out=1)
    return {'mean': mean.item(), 'std': std.item()} | result


def distillation(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(5)
    teacher = ddp(Net(data.num_features, 16, 3).double()).eval()
    with torch.no_grad():
        soft = F.softmax(teacher(data.x, data.edge_index) / 2, dim=-1)

    def loss(out: Tensor) -> Tensor:
        hard = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        log_p = F.log_softmax(out / 2, dim=-1)
        return hard + 4 * F.kl_div(log_p, soft, reduction='batchmean')

    return trained(data, ddp, loss)


def cosine_embedding(data: Data, ddp: Ddp) -> Results:
    target = torch.where(data.y == 0, 1, -1)
    return trained(
        data, ddp, lambda out: F.cosine_embedding_loss(out, data.x, target, margin=0.1), 6
    )


def triplets(data: Data, ddp: Ddp) -> Results:
    """Anchors, their reconstruction, and the mean of all nodes as the negative."""

    def loss(out: Tensor) -> Tensor:
        negative = out.mean(dim=0, keepdim=True).expand_as(out)
        return F.triplet_margin_loss(out, data.x, negative, margin=1.0)

    return trained(data, ddp, loss, 6)


@by_order
def triplets_by_permutation(data: Data, ddp: Ddp) -> Results:
    def loss(out: Tensor) -> Tensor:
        return F.triplet_margin_loss(out, data.x, out[torch.randperm(out.size(0))])

    return trained(data, ddp, loss, 6)


@by_order
def margin_of_random_pairs(data: Data, ddp: Ddp) -> Results:
    def loss(out: Tensor) -> Tensor:
        a, b = torch.randint(data.num_nodes, (2, 64))
        sign = torch.sign(data.x[a, 0] - data.x[b, 0])
        return F.margin_ranking_loss(out[a, 0], out[b, 0], sign, margin=0.2)

    return trained(data, ddp, loss)


def entropy_regulariser(data: Data, ddp: Ddp) -> Results:
    """Every node is sure, all together are spread: mutual information."""

    def loss(out: Tensor) -> Tensor:
        p = out.softmax(dim=-1)
        mean = p.mean(dim=0)
        conditional = -(p * p.clamp(min=1e-12).log()).sum(-1).mean()
        return conditional + (mean * mean.log()).sum()

    return trained(data, ddp, loss)


def variance_and_covariance(data: Data, ddp: Ddp) -> Results:
    """VICReg's terms."""

    def loss(z: Tensor) -> Tensor:
        std = torch.sqrt(z.var(dim=0) + 1e-4)
        z = z - z.mean(dim=0)
        cov = (z.T @ z) / (z.shape[0] - 1)
        off = cov.pow(2).sum() - cov.diagonal().pow(2).sum()
        return F.relu(1 - std).mean() + off / z.shape[1]

    return trained(data, ddp, loss, 5)


def norm_of_activations(data: Data, ddp: Ddp) -> Results:
    def loss(out: Tensor) -> Tensor:
        mask = data.train_mask
        return (
            F.cross_entropy(out[mask], data.y[mask]) + 0.01 * out.norm(p=2) + 1e-3 * out.abs().sum()
        )

    return trained(data, ddp, loss)


def weights_in_the_loss(data: Data, ddp: Ddp) -> Results:
    """L2 of parameters by hand."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        l2 = sum(p.pow(2).sum() for p in model.parameters())
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask]) + 0.05 * l2

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def prototypes(data: Data, ddp: Ddp) -> Results:
    """Distances to learned points that no module holds, by a learned temperature."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 4).double())
    points = Parameter(torch.randn(3, 4, dtype=torch.double))
    temperature = Parameter(torch.zeros((), dtype=torch.double))

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        logits = -torch.cdist(z, points) * temperature.exp()
        return F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])

    losses = descend(loss_of, [*model.parameters(), points, temperature])
    return {'losses': losses, 'points': points, 'temperature': temperature, 'w': weights(model)}


def prototypes_by_means(data: Data, ddp: Ddp) -> Results:
    """Class means of embeddings are the prototypes, and gradients flow through them."""
    one_hot = F.one_hot(data.y, 3).double() * data.train_mask.unsqueeze(1)

    def loss(z: Tensor) -> Tensor:
        means = (one_hot.t() @ z) / one_hot.sum(dim=0).unsqueeze(1)
        logits = -(z.unsqueeze(1) - means.unsqueeze(0)).pow(2).sum(-1)
        return F.cross_entropy(logits[data.val_mask], data.y[data.val_mask])

    return trained(data, ddp, loss, 4)


def deep_clustering(data: Data, ddp: Ddp) -> Results:
    """DEC: a target of squares over frequencies, as in SDCN."""
    torch.manual_seed(0)

    class Clusters(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.centres = mlp(6, 8, 4), Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            q = 1 / (1 + torch.cdist(self.encoder(x), self.centres).pow(2))
            return q / q.sum(dim=1, keepdim=True)

    model = ddp(Clusters().double())

    def loss_of() -> Tensor:
        q = model(data.x)
        p = q.detach() ** 2 / q.detach().sum(dim=0)
        p = p / p.sum(dim=1, keepdim=True)
        return F.kl_div(q.log(), p, reduction='batchmean')

    return {'losses': descend(loss_of, model, 1.0), 'q': model(data.x), 'weights': weights(model)}


def fairness_penalty(data: Data, ddp: Ddp) -> Results:
    """Covariance of predictions with an attribute, and the gap of two groups' means."""
    group = data.x[:, 0] > data.x[:, 0].median()

    def loss(out: Tensor) -> Tensor:
        p = out.softmax(-1)[:, 0]
        gap = (p[group].mean() - p[~group].mean()).abs()
        cov = ((data.x[:, 1] - data.x[:, 1].mean()) * (p - p.mean())).mean().abs()
        return F.cross_entropy(out, data.y) + gap + cov

    return trained(data, ddp, loss)


def kernels_of_two_groups(data: Data, ddp: Ddp) -> Results:
    """Maximum mean discrepancy between training and test nodes."""

    def loss(z: Tensor) -> Tensor:
        a, b = z[data.train_mask], z[data.test_mask]
        linear = (a.mean(0) - b.mean(0)).pow(2).sum()
        kernel = torch.exp(-torch.cdist(a, b).pow(2)).mean()
        return F.cross_entropy(z, data.y) + linear - kernel

    return trained(data, ddp, loss)


def gaussian_likelihood(data: Data, ddp: Ddp) -> Results:
    def loss(out: Tensor) -> Tensor:
        mean, log_var = out.chunk(2, dim=-1)
        return F.gaussian_nll_loss(mean, data.x[:, :3], F.softplus(log_var) + 0.1)

    return trained(data, ddp, loss, 6)
