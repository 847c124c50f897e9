"""Loops that are more than one optimizer: LBFGS, averages, accumulation, groups, clipping."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, descend, mlp, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


def supervised(data: Data, out: Tensor) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def three_steps(data: Data, model: Module, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = supervised(data, model(data.x, data.edge_index))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def of(ddp: Ddp, num_out: int = 3) -> Module:
    torch.manual_seed(0)
    return ddp(Net(6, 8, num_out).double())


def lbfgs(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = supervised(data, model(data.x, data.edge_index))
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(3)]
    return {'losses': losses, 'weights': weights(model)}


def lbfgs_with_line_search(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Linear(6, 3).double())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn='strong_wolfe')

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = supervised(data, model(data.x))
        loss.backward()
        return loss

    return {'losses': [float(optimizer.step(closure)) for _ in range(2)], 'w': weights(model)}


def clipped_gradients(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        supervised(data, model(data.x, data.edge_index)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
    return {'norms': norms, 'weights': weights(model)}


def clipped_values(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    supervised(data, model(data.x, data.edge_index)).backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    return {name: p.grad for name, p in getattr(model, 'module', model).named_parameters()}


def accumulated_gradients(data: Data, ddp: Ddp) -> Results:
    """Two losses in two backwards, one step; then both in one backward."""
    model = of(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for mask in (data.train_mask, data.val_mask):
            out = model(data.x, data.edge_index)
            (F.cross_entropy(out[mask], data.y[mask]) / 2).backward()
        optimizer.step()
    return {'weights': weights(model)}


def backward_twice(data: Data, ddp: Ddp) -> Results:
    """One forward, two losses, the graph is kept."""
    model = of(ddp)
    out = model(data.x, data.edge_index)
    supervised(data, out).backward(retain_graph=True)
    (0.1 * out.pow(2).mean()).backward()
    return {name: p.grad for name, p in getattr(model, 'module', model).named_parameters()}


def groups_of_parameters(data: Data, ddp: Ddp) -> Results:
    """Weight decay for layers, none for norms, another rate for the last layer."""

    class Normed(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = GCNConv(6, 8, bias=False), GCNConv(8, 3)
            self.norm = BatchNorm1d(8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv2(self.norm(self.conv1(x, edge_index)).relu(), edge_index)

    torch.manual_seed(0)
    model = ddp(Normed().double())
    decay, plain = [], []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (plain if isinstance(module, BatchNorm1d) else decay).append(parameter)
    optimizer = torch.optim.SGD(
        [{'params': decay, 'weight_decay': 0.1}, {'params': plain, 'lr': 0.5}], lr=0.1
    )
    sizes = [len(decay), len(plain)]
    return {'sizes': sizes, 'losses': three_steps(data, model, optimizer), 'w': weights(model)}


def rates_by_layer(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    net = Net(6, 8, 3).double()
    model = ddp(net)
    groups = [
        dict(params=net.conv1.parameters(), weight_decay=0.05),
        dict(params=net.conv2.parameters()),
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    losses = []
    for _ in range(3):
        losses += three_steps(data, model, optimizer)
        scheduler.step()
    return {'losses': losses, 'weights': weights(model)}


def averaged_weights(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    averaged = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        three_steps(data, model, optimizer)
        averaged.update_parameters(model)
    out = averaged(data.x, data.edge_index).detach()
    return {'out': out, 'sum': sum(p.sum().item() for p in averaged.parameters())}


def moving_average(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    ema = AveragedModel(getattr(model, 'module', model), multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        three_steps(data, model, optimizer)
        ema.update_parameters(getattr(model, 'module', model))
    return {'ema': weights(ema.module)}


def copies_of_models(data: Data, ddp: Ddp) -> Results:
    """A copy before training, restored at the end by load_state_dict."""
    model = of(ddp)
    best = copy.deepcopy(model.state_dict())
    three_steps(data, model, torch.optim.SGD(model.parameters(), lr=0.5))
    trained = model(data.x, data.edge_index).detach()
    model.load_state_dict(best)
    return {'trained': trained, 'restored': model(data.x, data.edge_index).detach()}


def copy_of_the_whole_model(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    other = copy.deepcopy(model)
    losses = three_steps(data, other, torch.optim.SGD(other.parameters(), lr=0.5))
    return {'losses': losses, 'one': weights(model), 'other': weights(other)}


def frozen_layers(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    net = Net(6, 8, 3).double()
    for parameter in net.conv1.parameters():
        parameter.requires_grad = False
    model = ddp(net)
    chosen = filter(lambda p: p.requires_grad, model.parameters())
    return {
        'losses': three_steps(data, model, torch.optim.SGD(chosen, lr=0.5)),
        'w': weights(model),
    }


def frozen_later(data: Data, ddp: Ddp) -> Results:
    """Fine-tuning: the first layer learns, then it is frozen."""
    model = of(ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = three_steps(data, model, optimizer)
    for name, parameter in model.named_parameters():
        if 'conv1' in name:
            parameter.requires_grad_(False)
    return {'losses': losses + three_steps(data, model, optimizer), 'weights': weights(model)}


def two_models_one_loss(data: Data, ddp: Ddp) -> Results:
    first, second = of(ddp, 8), ddp(mlp(8, 8, 3).double())
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = supervised(data, second(first(data.x, data.edge_index).relu()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {'losses': losses, 'first': weights(first), 'second': weights(second)}


def adversaries(data: Data, ddp: Ddp) -> Results:
    """Two models, two optimizers: a discriminator between training and test nodes."""
    encoder, critic = of(ddp, 4), ddp(mlp(4, 8, 1).double())
    steps = torch.optim.SGD(encoder.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)
    target, losses = data.test_mask.double(), []
    for _ in range(3):
        z = encoder(data.x, data.edge_index)
        loss = F.binary_cross_entropy_with_logits(critic(z.detach()).squeeze(-1), target)
        steps[1].zero_grad()
        loss.backward()
        steps[1].step()
        fooled = -F.binary_cross_entropy_with_logits(critic(z).squeeze(-1), target)
        steps[0].zero_grad()
        (fooled + supervised(data, z)).backward()
        steps[0].step()
        losses += [loss.item(), fooled.item()]
    return {'losses': losses, 'encoder': weights(encoder), 'critic': weights(critic)}


def mutual_learning(data: Data, ddp: Ddp) -> Results:
    """A GNN and an MLP teach each other in turns."""
    gnn, rows = of(ddp), ddp(mlp(6, 8, 3).double())

    def loss_of() -> Tensor:
        a, b = gnn(data.x, data.edge_index), rows(data.x)
        pull = F.kl_div(b.log_softmax(-1), a.detach().softmax(-1), reduction='none').sum(-1).mean()
        push = F.mse_loss(a.softmax(-1), b.detach().softmax(-1))
        return supervised(data, a) + supervised(data, b) + pull + push

    losses = descend(loss_of, [*gnn.parameters(), *rows.parameters()])
    return {'losses': losses, 'gnn': weights(gnn), 'rows': weights(rows)}
