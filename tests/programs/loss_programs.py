"""Losses of classification, as a loop over epochs computes them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, descend, mlp, weights
from torch import Tensor
from torch_geometric.data import Data


def masked_cross_entropy(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return {'losses': losses, 'out': out, 'weights': weights(model)}


def nll_of_log_softmax(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        out = F.log_softmax(model(data.x, data.edge_index), dim=1)
        return F.nll_loss(out[data.train_mask], data.y[data.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def class_weights_from_bincount(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    counts = torch.bincount(data.y[data.train_mask], minlength=3)
    weight = (counts.sum() / (3 * counts)).double()
    criterion = torch.nn.CrossEntropyLoss(weight=weight)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return criterion(out[data.train_mask], data.y[data.train_mask])

    return {'counts': counts, 'losses': descend(loss_of, model), 'weights': weights(model)}


def label_smoothing(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        mask = data.train_mask
        return F.cross_entropy(out[mask], data.y[mask], label_smoothing=0.1)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def ignored_labels(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    target = data.y.clone()
    target[~data.train_mask] = -100

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index), target)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def labels_of_minus_one(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    target = torch.where(data.train_mask, data.y, -1)

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index), target, ignore_index=-1)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def sum_over_count(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        out, mask = model(data.x, data.edge_index), data.train_mask
        return F.cross_entropy(out[mask], data.y[mask], reduction='sum') / int(mask.sum())

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def unreduced_times_mask(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        values = F.cross_entropy(model(data.x, data.edge_index), data.y, reduction='none')
        return (values * data.train_mask).sum() / data.train_mask.sum()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def unreduced_then_mean(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        values = F.cross_entropy(model(data.x, data.edge_index), data.y, reduction='none')
        return values[data.train_mask].mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def train_idx(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    idx = data.train_mask.nonzero().view(-1)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return F.cross_entropy(out[idx], data.y[idx])

    return {'count': idx.numel(), 'losses': descend(loss_of, model), 'weights': weights(model)}


def gather_of_log_probabilities(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        log_prob = model(data.x, data.edge_index).log_softmax(-1)
        picked = log_prob.gather(1, data.y.unsqueeze(1)).squeeze(1)
        return -picked[data.train_mask].mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def one_hot_by_hand(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    target = F.one_hot(data.y, 3).double()

    def loss_of() -> Tensor:
        log_prob = model(data.x, data.edge_index).log_softmax(-1)
        return -(target * log_prob).sum(-1)[data.train_mask].mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def focal_loss(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        out, mask = model(data.x, data.edge_index), data.train_mask
        ce = F.cross_entropy(out[mask], data.y[mask], reduction='none')
        return ((1 - torch.exp(-ce)) ** 2 * ce).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def soft_targets(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    soft = 0.9 * F.one_hot(data.y, 3) + 0.1 / 3

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return F.cross_entropy(out[data.train_mask], soft[data.train_mask].double())

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def multi_label(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 4).double())
    target = (data.x[:, :4] > data.x[:, :4].mean(dim=0)).double()
    positive = target[data.train_mask].sum(0)
    pos_weight = (data.train_mask.sum() - positive) / positive.clamp(min=1)
    criterion = torch.nn.BCEWithLogitsLoss(pos_weight=pos_weight)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return criterion(out[data.train_mask], target[data.train_mask])

    losses = descend(loss_of, model)
    return {'pos_weight': pos_weight, 'losses': losses, 'weights': weights(model)}


def binary_with_sigmoid(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 1).double())
    target = (data.y == 0).double()

    def loss_of() -> Tensor:
        out = torch.sigmoid(model(data.x, data.edge_index)).squeeze(-1)
        return F.binary_cross_entropy(out[data.train_mask], target[data.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def multi_margin(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(mlp(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        return F.multi_margin_loss(model(data.x)[data.train_mask], data.y[data.train_mask])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def loss_per_class(data: Data, ddp: Ddp) -> Results:
    """Every class counts alike, however many nodes it has."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        values = F.cross_entropy(model(data.x, data.edge_index), data.y, reduction='none')
        return sum(values[data.train_mask & (data.y == c)].mean() for c in range(3)) / 3

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def logit_adjustment(data: Data, ddp: Ddp) -> Results:
    """Menon et al., 2021: logits plus the logarithm of how frequent a class is."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    prior = F.one_hot(data.y, 3)[data.train_mask].double().mean(dim=0)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index) + prior.log()
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return {'prior': prior, 'losses': descend(loss_of, model), 'weights': weights(model)}


def two_heads(data: Data, ddp: Ddp) -> Results:
    """A sum of two losses: of the labels, and of the features themselves."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3 + data.num_features).double())

    def loss_of() -> Tensor:
        labels, features = model(data.x, data.edge_index).split([3, data.num_features], dim=-1)
        supervised = F.cross_entropy(labels[data.train_mask], data.y[data.train_mask])
        return supervised + 0.1 * F.mse_loss(features, data.x)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}
