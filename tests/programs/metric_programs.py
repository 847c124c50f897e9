"""What a loop reports and decides by: accuracies, F1, early stopping, learning rates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, descend, weights
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data


def trained(data: Data, ddp: Ddp, num_out: int = 3) -> tuple[Module, Tensor]:
    """A model after three steps, and its output in evaluation."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, num_out).double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    descend(loss_of, model)
    model.eval()
    with torch.no_grad():
        return model, model(data.x, data.edge_index)


def accuracy_of_every_mask(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    pred = out.argmax(dim=-1)
    accs = []
    for mask in [data.train_mask, data.val_mask, data.test_mask]:
        accs.append(int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()))
    return {'accs': accs, 'pred': pred}


def accuracy_by_item(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    correct = (out.argmax(dim=1) == data.y)[data.test_mask].sum().item()
    return {'correct': correct, 'acc': correct / data.test_mask.sum().item()}


def accuracy_by_mean(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    pred = out.argmax(dim=1)
    acc = (pred[data.val_mask] == data.y[data.val_mask]).float().mean().item()
    eq = pred.eq(data.y).double().mean()
    return {'acc': acc, 'all': eq}


def accuracy_by_len(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    pred, y = out.argmax(-1)[data.test_mask], data.y[data.test_mask]
    return {'count': len(y), 'acc': (pred == y).sum().item() / len(y), 'size': y.size(0)}


def accuracy_of_every_class(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    pred = out.argmax(-1)
    return {
        f'class {c}': ((pred == c) & (data.y == c)).sum().item()
        / max((data.y == c).sum().item(), 1)
        for c in range(int(data.y.max()) + 1)
    }


def confusion_matrix(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    num_classes = int(data.y.max()) + 1
    pred, y = out.argmax(-1)[data.test_mask], data.y[data.test_mask]
    matrix = torch.bincount(y * num_classes + pred, minlength=num_classes**2)
    return {'matrix': matrix.view(num_classes, num_classes)}


def confusion_by_index_put(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    matrix = torch.zeros(3, 3, dtype=torch.long)
    pred = out.argmax(-1)
    matrix.index_put_((data.y, pred), torch.ones_like(pred), accumulate=True)
    return {'matrix': matrix}


def f1_micro_and_macro(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    pred, y, scores = out.argmax(-1), data.y, []
    for c in range(3):
        tp = ((pred == c) & (y == c)).sum().item()
        fp = ((pred == c) & (y != c)).sum().item()
        fn = ((pred != c) & (y == c)).sum().item()
        scores.append(2 * tp / max(2 * tp + fp + fn, 1))
    return {'macro': sum(scores) / 3, 'micro': (pred == y).sum().item() / y.numel()}


def regression_scores(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features - 1, 8, 1).double())
    x, y = data.x[:, :-1], data.x[:, -1]

    def loss_of() -> Tensor:
        return F.mse_loss(
            model(x, data.edge_index).squeeze(-1)[data.train_mask], y[data.train_mask]
        )

    losses = descend(loss_of, model, lr=0.01)
    with torch.no_grad():
        pred = model(x, data.edge_index).squeeze(-1)
        pred, y = pred[data.test_mask], y[data.test_mask]
        mae = (pred - y).abs().mean().item()
        r2 = 1 - ((y - pred) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        rmse = ((pred - y) ** 2).mean().sqrt()
    return {'losses': losses, 'mae': mae, 'r2': r2.item(), 'rmse': rmse}


def topk_accuracy(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp, num_out=5)
    top = out.topk(2, dim=-1).indices
    hit = (top == data.y.view(-1, 1)).any(dim=-1)
    return {'acc': hit[data.test_mask].double().mean().item(), 'top': top}


def early_stopping(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    best, best_state, bad, history = float('inf'), {}, 0, []
    for _ in range(12):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        with torch.no_grad():
            out = model(data.x, data.edge_index)
            val = F.cross_entropy(out[data.val_mask], data.y[data.val_mask]).item()
        history.append(val)
        if val < best:
            best, best_state, bad = val, weights(model), 0
        else:
            bad += 1
            if bad == 2:
                break
    return {'epochs': len(history), 'history': history, 'best': best_state}


def plateau_scheduler(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)
    rates = []
    for _ in range(5):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        scheduler.step(F.cross_entropy(out[data.val_mask], data.y[data.val_mask]).detach())
        rates.append(optimizer.param_groups[0]['lr'])
    return {'rates': rates, 'weights': weights(model)}


def running_means(data: Data, ddp: Ddp) -> Results:
    """A list of tensors of losses, and their mean at the end."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total, losses = 0.0, []
    for _ in range(3):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        total += loss.item() * int(data.train_mask.sum())
    return {'mean': torch.stack(losses).mean(), 'total': total / (3 * data.num_nodes)}


def confidence_and_calibration(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    conf, pred = out.softmax(dim=-1).max(dim=-1)
    correct = (pred == data.y).double()
    ece = 0.0
    for low in (0.3, 0.5, 0.7, 0.9):
        chosen = (conf > low) & (conf <= low + 0.2)
        if chosen.any():
            gap = (correct[chosen].mean() - conf[chosen].mean()).abs()
            ece += gap.item() * chosen.sum().item() / data.num_nodes
    return {'conf': conf, 'ece': ece, 'least': conf.min().item(), 'most': conf.max().item()}


def auc_by_pairs(data: Data, ddp: Ddp) -> Results:
    """The share of pairs of a positive and a negative that are in order."""
    _, out = trained(data, ddp)
    score, target = out[:, 0], data.y == 0
    positive, negative = score[target], score[~target]
    above = (positive.view(-1, 1) > negative.view(1, -1)).double().mean()
    return {'auc': above}


def auc_by_ranks(data: Data, ddp: Ddp) -> Results:
    """The rank sum of Mann and Whitney."""
    _, out = trained(data, ddp)
    score, target = out[:, 0], data.y == 0
    rank = score.argsort().argsort() + 1
    num_pos, num_neg = int(target.sum()), int((~target).sum())
    auc = (int(rank[target].sum()) - num_pos * (num_pos + 1) / 2) / (num_pos * num_neg)
    return {'auc': auc}


def numpy_metrics(data: Data, ddp: Ddp) -> Results:
    """As with sklearn: everything goes to NumPy."""
    _, out = trained(data, ddp)
    pred = out.argmax(-1).cpu().numpy()
    y, mask = data.y.cpu().numpy(), data.test_mask.cpu().numpy()
    return {'acc': float((pred[mask] == y[mask]).mean())}


def lists_of_predictions(data: Data, ddp: Ddp) -> Results:
    _, out = trained(data, ddp)
    pred, y = out.argmax(-1).tolist(), data.y.tolist()
    return {'acc': sum(p == t for p, t in zip(pred, y, strict=True)) / len(y)}
