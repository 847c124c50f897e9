"""Training: optimizers, several backwards and models, gradients that scripts ask for and change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, mlp, parts
from three_steps import descend, fitted, inner, model_of, supervised, weights
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, Parameter, Sequential
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, GCNConv, GINConv


@parts(
    conv1=lambda: GINConv(Sequential(Linear(6, 8, bias=False), BatchNorm1d(8))),
    conv2=(GATv2Conv, 8, 3),
)
def attentive(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    return m.conv2(m.conv1(x, edge_index).relu(), edge_index)


def loss_of(model: Module, data: Data) -> Tensor:
    return supervised(model(data.x, data.edge_index), data)


def steps(data: Data, model: Module, optimizer: torch.optim.Optimizer, num: int = 3) -> list[float]:
    return descend(lambda: loss_of(model, data), optimizer, steps=num)


def lbfgs(data: Data, ddp: Ddp) -> Results:
    """Of a graph, and of rows with a search along lines."""

    def fitted(model: Module, loss: Callable[[], Tensor], **options: Any) -> list[Any]:
        optimizer = torch.optim.LBFGS(model.parameters(), **options)

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        return [[float(optimizer.step(closure)) for _ in range(2)], weights(model)]

    model, rows = model_of(ddp), model_of(ddp, lambda: Linear(6, 3))
    searches = {'max_iter': 3, 'line_search_fn': 'strong_wolfe'}
    return {
        'graph': fitted(model, lambda: loss_of(model, data), lr=0.1, max_iter=4),
        'rows': fitted(rows, lambda: supervised(rows(data.x), data), **searches),
    }


def clipped_and_accumulated(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, attentive)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=4)
    norms = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        for c in range(3):
            mask = data.train_mask & (data.y == c)
            loss = F.cross_entropy(model(data.x, data.edge_index)[mask], data.y[mask])
            (loss / 3).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        scheduler.step()
    return {'norms': norms, 'weights': weights(model)}


def backward_twice(data: Data, ddp: Ddp) -> Results:
    """One forward, two losses, the graph is kept; a retained gradient, and hooks of rows."""
    model, seen = model_of(ddp), []

    def hook(grad: Tensor) -> Tensor:
        seen.append(grad.norm().item())
        return grad * 0.5

    hidden = inner(model).conv1(data.x, data.edge_index)
    hidden.register_hook(hook)
    hidden.retain_grad()
    out = inner(model).conv2(hidden.relu(), data.edge_index)
    supervised(out, data).backward(retain_graph=True)
    (0.1 * out.pow(2).mean()).backward()
    grads = {name: p.grad for name, p in inner(model).named_parameters()}
    return grads | {'seen': seen, 'hidden': hidden.grad}


def groups_of_parameters(data: Data, ddp: Ddp) -> Results:
    """Weight decay for layers, none for norms; the rate falls."""
    model = model_of(ddp, attentive)
    decay, plain = [], []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (plain if isinstance(module, BatchNorm1d) else decay).append(parameter)
    optimizer = torch.optim.AdamW(
        [{'params': decay, 'weight_decay': 0.1}, {'params': plain, 'lr': 0.05}], lr=0.01, eps=1e-3
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    losses = steps(data, model, optimizer)
    scheduler.step()
    losses += steps(data, model, optimizer)
    return {'sizes': [len(decay), len(plain)], 'losses': losses, 'w': weights(model)}


def averaged_weights(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp)
    averaged = AveragedModel(model)
    ema = AveragedModel(inner(model), multi_avg_fn=get_ema_multi_avg_fn(0.8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        steps(data, model, optimizer)
        averaged.update_parameters(model)
        ema.update_parameters(inner(model))
    out = averaged(data.x, data.edge_index).detach()
    return {'out': out, 'ema': weights(ema.module)}


def statistics_after_warming_up(data: Data, ddp: Ddp) -> Results:
    """Clean and other features in one step: running statistics see both; then evaluation mode."""
    model = model_of(ddp, attentive)

    def both() -> Tensor:
        clean = model(data.x, data.edge_index)
        other = model(data.x.flip(1) * 0.5, data.edge_index)
        kl = F.kl_div(other.log_softmax(-1), clean.softmax(-1), reduction='batchmean')
        return supervised(clean, data) + kl

    losses = descend(both, model, 0.02)
    model.eval()
    losses += descend(lambda: loss_of(model, data), model, 0.02)
    return {'losses': losses, 'weights': weights(model)}


def temperature_outside_of_the_model(data: Data, ddp: Ddp) -> Results:
    """Calibration: the model is frozen, one number learns on the validation nodes."""
    model = model_of(ddp).eval()
    temperature = Parameter(torch.ones(1, dtype=torch.double) * 1.5)
    with torch.inference_mode():
        entropy = model(data.x, data.edge_index).softmax(-1).log().mean().item()
    with torch.no_grad():
        logits = model(data.x, data.edge_index)

    def loss() -> Tensor:
        return F.cross_entropy(logits[data.val_mask] / temperature, data.y[data.val_mask])

    return {'losses': descend(loss, [temperature], 0.5), 't': temperature, 'entropy': entropy}


# Several models


def two_models_one_loss(data: Data, ddp: Ddp) -> Results:
    """The second takes what the first gives; a third shares the encoder of the first."""
    first, second = model_of(ddp, lambda: Net(6, 8, 8)), model_of(ddp, lambda: mlp(8, 8, 3))
    third = ddp(Sequential(inner(second)[0], torch.nn.ReLU(), Linear(8, 6).double()))
    parameters = {id(p): p for m in (first, second, third) for p in m.parameters()}.values()

    def loss() -> Tensor:
        h = first(data.x, data.edge_index).relu()
        return supervised(second(h), data) + 0.1 * F.mse_loss(third(h), data.x)

    losses = descend(loss, list(parameters))
    return {'losses': losses, 'models': [weights(m) for m in (first, second, third)]}


# What is asked of autograd beyond backward


def saliency(data: Data, ddp: Ddp) -> Results:
    """Gradients of features: of a leaf, of data.x itself, by autograd.grad; and of edge weights."""
    model, x = model_of(ddp), data.x.clone().requires_grad_(True)
    supervised(model(x, data.edge_index), data).backward()
    data.x.requires_grad_()
    model(data.x, data.edge_index).softmax(-1)[:, 0].sum().backward()
    other = data.x.detach().requires_grad_(True)
    (grad,) = torch.autograd.grad(supervised(model(other, data.edge_index), data), other)
    weight = data.edge_weight.clone().requires_grad_()
    supervised(model(x.detach(), data.edge_index, weight), data).backward()
    importance = x.grad.abs().mean(dim=0), data.x.grad.norm(dim=-1)
    return {'x': x.grad, 'found': importance, 'grad': grad, 'weight': weight.grad}


def perturbed_features(data: Data, ddp: Ddp) -> Results:
    """FLAG: ascents on a perturbation, by autograd.grad and by backward."""
    model = model_of(ddp, attentive)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        perturb = torch.zeros_like(data.x).uniform_(-0.0, 0.0).requires_grad_()
        (grad,) = torch.autograd.grad(
            supervised(model(data.x + perturb, data.edge_index), data), perturb
        )
        perturb.data = perturb.detach() + 0.05 * grad.sign()
        for _ in range(2):
            loss = supervised(model(data.x + perturb, data.edge_index), data) / 3
            loss.backward()
            perturb.data = (perturb.detach() + 1e-2 * torch.sign(perturb.grad.detach())).data
            perturb.grad[:] = 0
        optimizer.step()
        losses.append(loss.item())
    return {'losses': losses, 'perturb': perturb.detach(), 'weights': weights(model)}


def gradient_penalty(data: Data, ddp: Ddp) -> Results:
    """Second derivatives, by create_graph, of a model of rows."""
    model = model_of(ddp, lambda: mlp(6, 8, 1))

    def loss() -> Tensor:
        x = data.x.detach().clone().requires_grad_(True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.mse_loss(out.squeeze(-1), data.y.double()) + (grad.norm(dim=-1) - 1).pow(2).mean()

    return fitted(loss, model, 0.02)


def gradients_by_hand(data: Data, ddp: Ddp) -> Results:
    """SGD with momentum by autograd.grad, one parameter not asked for; then with p.grad."""
    model, norms = model_of(ddp), []
    asked = [p for name, p in model.named_parameters() if not name.endswith('conv2.bias')]
    velocity = [torch.zeros_like(p) for p in asked]
    for _ in range(3):
        grads = torch.autograd.grad(loss_of(model, data), asked, allow_unused=True)
        with torch.no_grad():
            for p, grad, v in zip(asked, grads, velocity, strict=True):
                v.mul_(0.9).add_(grad)
                p -= 0.1 * v
        model.zero_grad()
        loss_of(model, data).backward()
        norms.append(sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
    return {'norms': norms, 'weights': weights(model)}


def grad_beside_backward(data: Data, ddp: Ddp) -> Results:
    """None where there was none; those that were there stay, and the next backward adds to them."""
    model = model_of(ddp)
    parameters = list(model.parameters())
    loss = loss_of(model, data)
    (first,) = torch.autograd.grad(loss, parameters[:1], retain_graph=True)
    assert all(p.grad is None for p in parameters)
    loss.backward()
    asked = torch.autograd.grad(loss_of(model, data) * 3, parameters)
    loss_of(model, data).backward()
    return {'first': first, 'asked': asked, 'grads': [p.grad for p in parameters]}


def hooks_of_modules_and_parameters(data: Data, ddp: Ddp) -> Results:
    """Grad-CAM: activations and gradients of the first layer; a gradient is halved."""
    torch.manual_seed(0)
    net, kept, means = Net().double(), {}, []

    def hook(module: Module, args: Any, out: Tensor) -> None:
        if out.requires_grad:
            out.retain_grad()
        kept['out'] = out
        means.append(out.mean().item())

    net.conv1.register_forward_hook(hook)
    net.conv2.lin.weight.register_hook(lambda grad: grad * 0.5)
    model = ddp(net)
    losses = descend(lambda: loss_of(model, data), model)
    alpha = kept['out'].grad.mean(dim=0)
    cam = (alpha * kept['out']).sum(dim=-1).relu()
    return {'losses': losses, 'alpha': alpha, 'cam': cam, 'means': means, 'w': weights(model)}


def own_functions(data: Data, ddp: Ddp) -> Results:
    """Autograd Functions of rows: turned round, summed over all nodes, a step by their mean."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
            ctx.scale = scale
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return -ctx.scale * grad, None

    class Total(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.count = x.size(0)
            return x.sum(dim=0)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.expand(ctx.count, -1)

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

    @parts(
        conv1=(GCNConv, 6, 8),
        conv2=(GCNConv, 8, 3),
        domain=(Linear, 3, 1),
        slope=lambda: Parameter(torch.ones(1)),
    )
    def net(m: Any, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = m.conv1(x, edge_index)
        out = m.conv2(Spike.apply(h, m.slope) + h, edge_index)
        return out, m.domain(Reverse.apply(out, 0.5)).squeeze(-1), Total.apply(h) / 91

    model = model_of(ddp, net)

    def loss() -> Tensor:
        out, guess, total = model(data.x, data.edge_index)
        domain = F.binary_cross_entropy_with_logits(guess, data.test_mask.double())
        return supervised(out, data) + domain + (total - 1).pow(2).sum()

    return fitted(loss, model, 0.02)


def straight_through(data: Data, ddp: Ddp) -> Results:
    """Hard choices forward, soft ones backward; counts of the choices are a loss."""
    model = model_of(ddp)

    def loss() -> Tensor:
        soft = model(data.x, data.edge_index).softmax(dim=-1)
        hard = F.one_hot(soft.argmax(-1), 3) - soft.detach() + soft
        return (hard.mean(dim=0) - 1 / 3).pow(2).sum() + (hard * data.x[:, :3]).mean()

    return fitted(loss, model)
