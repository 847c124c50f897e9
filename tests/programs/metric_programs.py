"""Metrics after training: accuracies, scores, ranks, and what stops a training."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, parts
from three_steps import descend, model_of, supervised, weights
from torch import Tensor
from torch.nn import BatchNorm1d
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


def output(data: Data, ddp: Ddp, num_out: int = 3) -> Tensor:
    """What a model gives after three steps."""
    model = model_of(ddp, lambda: Net(6, 8, num_out))
    descend(lambda: supervised(model(data.x, data.edge_index), data), model)
    model.eval()
    with torch.no_grad():
        return model(data.x, data.edge_index)


def accuracies(data: Data, ddp: Ddp) -> Results:
    """In all the ways in which they are written."""
    pred = output(data, ddp).argmax(dim=-1)
    accs = [
        int((pred[mask] == data.y[mask]).sum()) / int(mask.sum())
        for mask in (data.train_mask, data.val_mask, data.test_mask)
    ]
    mask = data.test_mask
    hits, y = (pred == data.y)[mask].sum().item(), data.y[mask]
    return {
        'accs': accs,
        'pred': pred,
        'by item': hits / mask.sum().item(),
        'by mean': (pred[mask] == data.y[mask]).float().mean().item(),
        'all': pred.eq(data.y).double().mean(),
        'by len': [len(y), y.size(0), hits / len(y)],
        'by lists': sum(p == t for p, t in zip(pred.tolist(), data.y.tolist(), strict=True)),
    }


def scores_of_classes(data: Data, ddp: Ddp) -> Results:
    """Of every class, F1, and confusion by bincount and by index_put."""
    pred, y, found = output(data, ddp).argmax(-1), data.y, {}
    for c in range(int(y.max()) + 1):
        tp = ((pred == c) & (y == c)).sum().item()
        fp = ((pred == c) & (y != c)).sum().item()
        fn = ((pred != c) & (y == c)).sum().item()
        found[str(c)] = [tp / max((y == c).sum().item(), 1), 2 * tp / max(2 * tp + fp + fn, 1)]
    matrix = torch.zeros(3, 3, dtype=torch.long)
    matrix.index_put_((y, pred), torch.ones_like(pred), accumulate=True)
    found['matrix'] = matrix
    mask = data.test_mask
    counted = torch.bincount(y[mask] * 3 + pred[mask], minlength=9).view(3, 3)
    return found | {'of test': counted, 'micro': (pred == y).sum().item() / y.numel()}


def regression_scores(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, lambda: Net(5, 8, 1))
    x, y, mask = data.x[:, :-1], data.x[:, -1], data.train_mask

    def loss_of() -> Tensor:
        return F.mse_loss(model(x, data.edge_index).squeeze(-1)[mask], y[mask])

    losses = descend(loss_of, model, lr=0.01)
    with torch.no_grad():
        pred = model(x, data.edge_index).squeeze(-1)[data.test_mask]
        y = y[data.test_mask]
        r2 = 1 - ((y - pred) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        mae, rmse = (pred - y).abs().mean().item(), ((pred - y) ** 2).mean().sqrt()
    return {'losses': losses, 'mae': mae, 'r2': r2.item(), 'rmse': rmse}


def topk_accuracy(data: Data, ddp: Ddp) -> Results:
    top = output(data, ddp, num_out=5).topk(2, dim=-1).indices
    hit = (top == data.y.view(-1, 1)).any(dim=-1)
    return {'acc': hit[data.test_mask].double().mean().item(), 'top': top}


def confidence_and_calibration(data: Data, ddp: Ddp) -> Results:
    conf, pred = output(data, ddp).softmax(dim=-1).max(dim=-1)
    correct, ece = (pred == data.y).double(), 0.0
    for low in (0.3, 0.5, 0.7, 0.9):
        chosen = (conf > low) & (conf <= low + 0.2)
        if chosen.any():
            gap = (correct[chosen].mean() - conf[chosen].mean()).abs()
            ece += gap.item() * chosen.sum().item() / data.num_nodes
    return {'conf': conf, 'ece': ece, 'least': conf.min().item(), 'most': conf.max().item()}


def auc_by_ranks(data: Data, ddp: Ddp) -> Results:
    """The rank sum of Mann and Whitney."""
    score, target = output(data, ddp)[:, 0], data.y == 0
    rank = score.argsort().argsort() + 1
    num_pos, num_neg = int(target.sum()), int((~target).sum())
    auc = (int(rank[target].sum()) - num_pos * (num_pos + 1) / 2) / (num_pos * num_neg)
    return {'auc': auc}


def linear_probe(data: Data, ddp: Ddp) -> Results:
    """Frozen embeddings: ridge regression in closed form, and Lloyd's steps from class means."""
    z = output(data, ddp, num_out=5)
    z = (z - z[data.train_mask].mean(0)) / z[data.train_mask].std(0)
    a, y = z[data.train_mask], F.one_hot(data.y[data.train_mask], 3).double()
    w = torch.linalg.solve(a.T @ a + torch.eye(5, dtype=torch.double), a.T @ y)
    correct = (z @ w).argmax(-1)[data.test_mask] == data.y[data.test_mask]
    centres = torch.stack([z[data.y == c].mean(0) for c in range(3)])
    for _ in range(4):
        nearest = torch.cdist(z, centres).argmin(dim=1)
        one_hot = F.one_hot(nearest, 3).to(z.dtype)
        centres = one_hot.t() @ z / one_hot.sum(0).clamp(min=1).unsqueeze(1)
    return {'w': w, 'acc': correct.double().mean().item(), 'c': centres, 'nearest': nearest}


@parts(conv1=partial(GCNConv, 6, 8, bias=False), conv2=(GCNConv, 8, 3), bn=(BatchNorm1d, 8))
def normed_net(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    """GCN, batch norm, GCN."""
    return m.conv2(m.bn(m.conv1(x, edge_index)).relu(), edge_index)


def evaluation_between_the_steps(data: Data, ddp: Ddp) -> Results:
    """PyG's example: train(), test(), the best by validation, a scheduler, and its state kept."""
    model = model_of(ddp, normed_net)
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


def stopped_by_losses(data: Data, ddp: Ddp) -> Results:
    """Tensors of losses of validation: they stop, set the rate, and are averaged at the end."""
    model = model_of(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)
    best, rates, losses = float('inf'), [], []
    for _ in range(8):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        supervised(out, data).backward()
        optimizer.step()
        val = F.cross_entropy(out[data.val_mask], data.y[data.val_mask]).detach()
        scheduler.step(val)
        losses.append(val)
        rates.append(optimizer.param_groups[0]['lr'])
        if val > best + 0.5:
            break
        best = min(best, val.item())
    return {'mean': torch.stack(losses).mean(), 'rates': rates, 'weights': weights(model)}
