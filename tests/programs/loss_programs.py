"""Losses of nodes: what they mask and weigh, and what they compare rows with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, named, programs
from three_steps import descend, model_of, supervised, trained, weights
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Data
from torch_geometric.utils import to_torch_csr_tensor


def fit(data: Data, ddp: Ddp, loss: Callable[[Tensor, Data], Tensor], num_out: int = 3) -> Results:
    """Three steps of a loss of the output and the data."""
    make = partial(Net, data.num_features, 8, num_out)
    return trained(data, ddp, make, loss=lambda out: loss(out, data))


def of_all(out: Tensor, data: Data) -> Tensor:
    return F.cross_entropy(out, data.y, reduction='none')


def of_known(out: Tensor, data: Data, **options: object) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask], **options)


def sum_over_count(out: Tensor, data: Data) -> Tensor:
    return of_known(out, data, reduction='sum') / int(data.train_mask.sum())


def ignored_labels(out: Tensor, data: Data) -> Tensor:
    target = data.y.clone()
    target[~data.train_mask] = -100
    of_minus_one = torch.where(data.train_mask, data.y, -1)
    return F.cross_entropy(out, target) + F.cross_entropy(out, of_minus_one, ignore_index=-1)


def train_idx(out: Tensor, data: Data) -> Tensor:
    idx = data.train_mask.nonzero().view(-1)
    log_prob = out.log_softmax(dim=1)
    picked = log_prob.gather(1, data.y.unsqueeze(1)).squeeze(1)
    return F.nll_loss(log_prob[idx], data.y[idx]) * idx.numel() / 9 - picked[idx].mean()


def focal_loss(out: Tensor, data: Data) -> Tensor:
    values = of_known(out, data, reduction='none')
    return ((1 - torch.exp(-values)) ** 2 * values).mean()


def soft_targets(out: Tensor, data: Data) -> Tensor:
    soft = 0.9 * F.one_hot(data.y, 3) + 0.1 / 3
    by_hand = -(soft * out.log_softmax(-1)).sum(-1)[data.train_mask].mean()
    return F.cross_entropy(out[data.train_mask], soft[data.train_mask].double()) + by_hand


def multi_label(out: Tensor, data: Data) -> Tensor:
    target = (data.x[:, :3] > data.x[:, :3].mean(dim=0)).double()
    positive = target[data.train_mask].sum(0)
    pos_weight = (data.train_mask.sum() - positive) / positive.clamp(min=1)
    criterion = torch.nn.BCEWithLogitsLoss(pos_weight=pos_weight)
    return criterion(out[data.train_mask], target[data.train_mask])


def loss_per_class(out: Tensor, data: Data) -> Tensor:
    """Every class counts alike; a class without nodes adds nothing."""
    values = of_all(out, data)
    known = sum(values[data.train_mask & (data.y == c)].mean() for c in range(3)) / 3
    nobody = data.train_mask & (data.y == 3)
    return known + out[nobody].pow(2).sum() + (out[nobody].mean() if nobody.any() else 0)


def logit_adjustment(out: Tensor, data: Data) -> Tensor:
    """Menon et al., 2021: logits plus the logarithm of how frequent a class is."""
    prior = F.one_hot(data.y, 3)[data.train_mask].double().mean(dim=0)
    return supervised(out + prior.log(), data)


def noisy_labels(out: Tensor, data: Data) -> Tensor:
    values = of_known(out, data, reduction='none')
    return values.topk(int(data.train_mask.sum()) // 2, largest=False).values.mean()


def prototypes_by_means(z: Tensor, data: Data) -> Tensor:
    """Class means of embeddings are the prototypes, and gradients flow through them."""
    one_hot = F.one_hot(data.y, 3).double() * data.train_mask.unsqueeze(1)
    means = (one_hot.t() @ z) / one_hot.sum(dim=0).unsqueeze(1)
    logits = -(z.unsqueeze(1) - means.unsqueeze(0)).pow(2).sum(-1)
    return F.cross_entropy(logits[data.val_mask], data.y[data.val_mask])


def triplets(out: Tensor, data: Data) -> Tensor:
    """Against the mean of all nodes, and against rows in another order."""
    negative = out.mean(dim=0, keepdim=True).expand_as(out)
    drawn = out[torch.randperm(out.size(0))]
    loss = F.triplet_margin_loss(out, data.x, negative, margin=1.0)
    return loss + F.triplet_margin_loss(out, data.x, drawn)


def margin_of_random_pairs(out: Tensor, data: Data) -> Tensor:
    a, b = torch.randint(data.num_nodes, (2, 64))
    sign = torch.sign(data.x[a, 0] - data.x[b, 0])
    return F.margin_ranking_loss(out[a, 0], out[b, 0], sign, margin=0.2)


def shifted_neighbours(z: Tensor, data: Data) -> Tensor:
    """Every node against the one before it, and in reverse."""
    return F.mse_loss(z, z.roll(1, 0)) + (z * z.flip(0)).tanh().mean() + F.cross_entropy(z, data.y)


def equally_many_of_two_classes(z: Tensor, data: Data) -> Tensor:
    """Masks of as many rows each, paired by their order."""
    a = (data.y == 0).cumsum(0) * (data.y == 0)
    b = (data.y == 1).cumsum(0) * (data.y == 1)
    first, second = (a > 0) & (a <= 12), (b > 0) & (b <= 12)
    both = torch.where(data.y[first] == 0, data.x[second][:, 0], data.x[first][:, 1])
    return F.cross_entropy(z, data.y) - F.mse_loss(z[first], z[second]).tanh() + both.mean()


def all_pairs(z: Tensor, data: Data) -> Tensor:
    """The adjacency against z z^T, dense, as small graphs allow."""
    adj = torch.zeros(data.num_nodes, data.num_nodes).double()
    adj[data.edge_index[0], data.edge_index[1]] = 1
    return F.binary_cross_entropy_with_logits(z @ z.t(), adj)


def info_nce_by_cross_entropy(z: Tensor, data: Data) -> Tensor:
    a, b = F.normalize(z), F.normalize(z.flip(1))
    return F.cross_entropy(a @ b.t() / 0.2, torch.arange(a.size(0)))


def contrast_of_two_views(z: Tensor, data: Data) -> Tensor:
    """Of nodes in two views (as in GRACE), and of a view with the nodes of its class."""
    a, b = F.normalize(z), F.normalize(z.flip(1))
    near, across = (a @ a.t() / 0.5).exp(), (a @ b.t() / 0.5).exp()
    loss = -torch.log(across.diag() / (near.sum(1) + across.sum(1) - near.diag())).mean()
    scores = (a @ a.t()).fill_diagonal_(-9.0).log_softmax(1)
    alike = (data.y[:, None] == data.y[None, :]).double()
    return loss - ((alike * scores).sum(1) / alike.sum(1)).mean() / 9


def auc_by_pairs(z: Tensor, data: Data) -> Tensor:
    """The share of pairs of a positive and a negative that are in order."""
    score, target = z[:, 0], data.y == 0
    above = score[target].view(-1, 1) > score[~target].view(1, -1)
    return z.mean() + above.double().mean()


def numpy_metrics(z: Tensor, data: Data) -> Tensor:
    return z.mean() + float(z.detach().cpu().numpy().mean())


def principal_components(z: Tensor, data: Data) -> Tensor:
    x = data.x - data.x.mean(0)
    vectors = torch.linalg.svd(x, full_matrices=False).Vh[:3]
    return F.mse_loss(z, (x @ vectors.t()).abs())


def csr_matrix(z: Tensor, data: Data) -> Tensor:
    adj = to_torch_csr_tensor(data.edge_index.flip(0), size=(data.num_nodes, data.num_nodes))
    return (adj.double() @ z).pow(2).mean()


def smooth_l1_by_norms(out: Tensor, data: Data) -> Tensor:
    return F.smooth_l1_loss(out, data.x.norm(dim=-1, keepdim=True) / 9)


def norm_of_activations(out: Tensor, data: Data) -> Tensor:
    return supervised(out, data) + 0.01 * out.norm(p=2) + 1e-3 * out.abs().sum()


PROGRAMS = programs(
    fit,
    named(
        *(ignored_labels, sum_over_count, train_idx, focal_loss),
        *(soft_targets, multi_label, loss_per_class, logit_adjustment, noisy_labels),
        *(margin_of_random_pairs, norm_of_activations, shifted_neighbours),
        *(equally_many_of_two_classes, all_pairs, info_nce_by_cross_entropy, auc_by_pairs),
        *(numpy_metrics, principal_components, csr_matrix, contrast_of_two_views),
    ),
)
PROGRAMS |= programs(partial(fit, num_out=1), named(smooth_l1_by_norms))
PROGRAMS |= programs(partial(fit, num_out=4), named(prototypes_by_means))
PROGRAMS |= programs(partial(fit, num_out=6), named(triplets))


def weights_and_points_in_the_loss(data: Data, ddp: Ddp) -> Results:
    """L2 of parameters by hand; learned points that no module holds, by a learned temperature."""
    model = model_of(ddp, lambda: Net(6, 8, 4))
    points = Parameter(torch.randn(3, 4, dtype=torch.double))
    temperature = Parameter(torch.zeros((), dtype=torch.double))

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        l2 = sum(p.pow(2).sum() for p in model.parameters())
        return supervised(-torch.cdist(z, points) * temperature.exp(), data) + 0.05 * l2

    losses = descend(loss_of, [*model.parameters(), points, temperature])
    return {'losses': losses, 'points': points, 'temperature': temperature, 'w': weights(model)}


def plain_prototypes_through_a_head(data: Data, ddp: Ddp) -> Results:
    """A head that is given rows, and a plain parameter too."""
    head = model_of(ddp, lambda: torch.nn.Linear(6, 4))
    centres = Parameter(torch.randn(3, 6, dtype=torch.double))

    def loss_of() -> Tensor:
        z, c = head(data.x).tanh(), head(centres).tanh()
        return F.cross_entropy(z @ c.t(), data.y)

    losses = descend(loss_of, [centres, *head.parameters()])
    return {'losses': losses, 'centres': centres, 'weights': weights(head)}
