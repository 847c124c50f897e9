"""Rows by ids and in other orders, lists, new pairs of nodes, gradients that are asked for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import index_to_mask, negative_sampling, one_hot


def model_of(data: Data, ddp: Ddp, num_out: int = 3) -> Module:
    torch.manual_seed(0)
    return ddp(Net(data.num_features, 8, num_out).double())


@by_order
def pairs_with_labels(data: Data, ddp: Ddp) -> Results:
    """Edges and negative ones in one list, with labels."""
    seed_everything(3)
    model = model_of(data, ddp, 5)
    neg = negative_sampling(data.edge_index, data.num_nodes, data.num_edges, method='dense')
    pairs = torch.cat([data.edge_index, neg], dim=-1)
    label = torch.cat([data.x.new_ones(data.num_edges), data.x.new_zeros(neg.size(1))])

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        score = (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)
        return F.binary_cross_entropy_with_logits(score, label)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def pairs_drawn_in_every_step(data: Data, ddp: Ddp) -> Results:
    seed_everything(4)
    model = model_of(data, ddp, 5)

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        neg = negative_sampling(data.edge_index, num_nodes=data.num_nodes, num_neg_samples=120)
        edge_label_index = torch.cat([data.edge_index, neg], dim=1)
        label = torch.zeros(edge_label_index.size(1), dtype=torch.double)
        label[: data.num_edges] = 1
        src, dst = edge_label_index
        return F.binary_cross_entropy_with_logits((z[src] * z[dst]).sum(-1), label)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def undirected_negatives(data: Data, ddp: Ddp) -> Results:
    seed_everything(5)
    neg = negative_sampling(data.edge_index, force_undirected=True, num_neg_samples=60)
    return {'neg': neg}


@by_order
def shifted_neighbours(data: Data, ddp: Ddp) -> Results:
    """Every node against the one before it, and in reverse."""
    model = model_of(data, ddp)

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        turned, before = z.flip(0), z.roll(1, 0)
        return F.mse_loss(z, before) + (z * turned).tanh().mean() + F.cross_entropy(z, data.y)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def batches_of_ids(data: Data, ddp: Ddp) -> Results:
    """Mini-batches of rows after a full forward."""
    model = model_of(data, ddp)
    order = torch.randperm(data.num_nodes)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        losses = [F.cross_entropy(out[ids], data.y[ids]) for ids in order.split(40)]
        return torch.stack(losses).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def pieces_of_rows(data: Data, ddp: Ddp) -> Results:
    a, b, c = data.x.tensor_split(3)
    first, *rest = data.y.chunk(4)
    return {'a': a.sum(0), 'b': b.mean(0), 'c': c, 'first': first, 'rest': [r.sum() for r in rest]}


def train_ids_by_where(data: Data, ddp: Ddp) -> Results:
    """Ids of masks: as many, parts of them, back to masks."""
    (ids,) = torch.where(data.train_mask)
    other = data.val_mask.nonzero().squeeze(1)
    mask = index_to_mask(ids, size=data.num_nodes)
    model = model_of(data, ddp)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return F.cross_entropy(out[ids], data.y[ids]) + 0.1 * out[other].pow(2).mean()

    losses = descend(loss_of, model)
    return {
        'counts': (ids.numel(), len(other)),
        'mask': mask,
        'list': sorted(data.y[ids].tolist()),
        'losses': losses,
        'weights': weights(model),
    }


@by_order
def labels_joined_and_compared(data: Data, ddp: Ddp) -> Results:
    """The rows of two selections that are as many, side by side."""
    first = data.train_mask.nonzero().view(-1)[:15]
    second = data.test_mask.nonzero().view(-1)[:15]
    agree = data.y[first] == data.y[second]
    return {
        'agree': agree.sum(),
        'distance': (data.x[first] - data.x[second]).norm(dim=1).sum(),
        'rows': torch.cat([data.x[first], data.x[second]], dim=1)[:5],
    }


@by_order
def equally_many_of_two_classes(data: Data, ddp: Ddp) -> Results:
    """Masks of as many rows each, paired by their order."""
    a = (data.y == 0).cumsum(0) * (data.y == 0)
    b = (data.y == 1).cumsum(0) * (data.y == 1)
    first, second = (a > 0) & (a <= 12), (b > 0) & (b <= 12)
    model = model_of(data, ddp)

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        return F.cross_entropy(z, data.y) - F.mse_loss(z[first], z[second]).tanh()

    both = torch.where(data.y[first] == 0, data.x[second][:, 0], data.x[first][:, 1])
    return {'both': both.sum(), 'losses': descend(loss_of, model), 'weights': weights(model)}


def sgd_by_autograd_grad(data: Data, ddp: Ddp) -> Results:
    """Momentum by hand; one parameter is not asked for."""
    model = model_of(data, ddp)
    asked = [p for name, p in model.named_parameters() if not name.endswith('conv2.bias')]
    velocity = [torch.zeros_like(p) for p in asked]
    for _ in range(3):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        grads = torch.autograd.grad(loss, asked, allow_unused=True)
        with torch.no_grad():
            for p, grad, v in zip(asked, grads, velocity, strict=True):
                v.mul_(0.9).add_(grad)
                p.sub_(0.1 * v)
    return {'loss': loss.item(), 'weights': weights(model)}


def grad_beside_backward(data: Data, ddp: Ddp) -> Results:
    """Gradients that were there stay, and the next backward adds to them."""
    model = model_of(data, ddp)
    parameters = list(model.parameters())

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index), data.y)

    loss_of().backward()
    asked = torch.autograd.grad(loss_of() * 3, parameters)
    loss_of().backward()
    return {'asked': asked, 'grads': [p.grad for p in parameters]}


def norm_of_gradients_of_two_losses(data: Data, ddp: Ddp) -> Results:
    """Losses are weighted by the gradients of a shared layer, as GradNorm does."""
    model = model_of(data, ddp)
    shared = next(p for p in model.parameters() if p.dim() > 1)

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        losses = F.cross_entropy(out, data.y), out.pow(2).mean()
        norms = [torch.autograd.grad(each, shared, retain_graph=True)[0].norm() for each in losses]
        return losses[0] + losses[1] * (norms[0] / norms[1]).clamp(max=2.0)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def table_of_nodes_as_features(data: Data, ddp: Ddp) -> Results:
    """A parameter of every node beside its features, given to the model whole."""
    torch.manual_seed(1)
    table = Parameter(torch.randn(data.num_nodes, 2, dtype=torch.double))
    torch.manual_seed(0)
    model = ddp(Net(data.num_features + 2, 8, 3).double())

    def loss_of() -> Tensor:
        x = torch.cat([data.x, table], dim=1)
        out = model(x, data.edge_index)
        return F.cross_entropy(out, data.y) + 0.01 * table.pow(2).sum()

    losses = descend(loss_of, [table, *model.parameters()])
    return {'losses': losses, 'table': table, 'weights': weights(model)}


@by_order
def table_through_a_conv(data: Data, ddp: Ddp) -> Results:
    """The table alone, and a penalty of what the conv makes of it."""
    torch.manual_seed(1)
    table = Parameter(torch.randn(data.num_nodes, 6, dtype=torch.double))
    torch.manual_seed(0)
    model = ddp(GCNConv(6, 3).double())

    def loss_of() -> Tensor:
        out = model(table, data.edge_index)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask]) + out.abs().mean()

    losses = descend(loss_of, [table, *model.parameters()])
    return {'losses': losses, 'table': table, 'weights': weights(model)}


def plain_prototypes_through_a_head(data: Data, ddp: Ddp) -> Results:
    """A head that is given rows, and a plain parameter too."""
    torch.manual_seed(0)
    head = ddp(Linear(6, 4).double())
    centres = Parameter(torch.randn(3, 6, dtype=torch.double))

    def loss_of() -> Tensor:
        z, c = head(data.x).tanh(), head(centres).tanh()
        return F.cross_entropy(z @ c.t(), data.y)

    losses = descend(loss_of, [centres, *head.parameters()])
    return {'losses': losses, 'centres': centres, 'weights': weights(head)}


def unique_rows_and_counts(data: Data, ddp: Ddp) -> Results:
    """Neighbourhoods that are alike, as in Weisfeiler and Lehman's test."""
    signs = (data.x > 1.5).long()
    rows, inverse, counts = signs.unique(dim=0, return_inverse=True, return_counts=True)
    return {'rows': rows, 'inverse': inverse, 'counts': counts}


def one_hot_labels_as_features(data: Data, ddp: Ddp) -> Results:
    hot = one_hot(data.y, num_classes=3, dtype=torch.double)
    hot[data.test_mask] = 0
    torch.manual_seed(0)
    model = ddp(Net(9, 8, 3).double())
    x = torch.cat([data.x, hot], dim=1)
    losses = descend(lambda: F.cross_entropy(model(x, data.edge_index), data.y), model)
    return {'hot': hot.sum(0), 'losses': losses, 'weights': weights(model)}


def whitened_targets(data: Data, ddp: Ddp) -> Results:
    """A ridge regression in closed form, and a Cholesky factor."""
    x, y = data.x - data.x.mean(0), one_hot(data.y, num_classes=3, dtype=torch.double)
    gram = x.t() @ x + torch.eye(6, dtype=torch.double)
    weight = torch.linalg.solve(gram, x.t() @ y)
    white = torch.linalg.solve(torch.linalg.cholesky(gram), x.t()).t()
    back = torch.cholesky_solve(x.t(), torch.linalg.cholesky(gram)).t()
    return {'weight': weight, 'white': white, 'back': back, 'out': (x @ weight).argmax(1)}


def written_by_out(data: Data, ddp: Ddp) -> Results:
    """Functions with out=."""
    total, picked = torch.empty_like(data.x), data.edge_weight.new_empty(data.num_edges)
    torch.add(data.x, 1, out=total)
    torch.index_select(data.x[:, 0], 0, data.edge_index[0], out=picked)
    both = torch.cat([data.x, data.x], 1)
    torch.cat([data.x * 2, data.x], 1, out=both)
    return {'total': total, 'picked': picked, 'both': both}
