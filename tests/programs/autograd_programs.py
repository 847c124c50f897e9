"""What is asked of autograd beyond backward: saliency, penalties, hooks, checkpoints, casts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, descend, mlp, weights
from torch import Tensor
from torch.func import functional_call
from torch.nn import Linear, Module
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


def supervised(data: Data, out: Tensor) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def of(ddp: Ddp) -> Module:
    torch.manual_seed(0)
    return ddp(Net(6, 8, 3).double())


def saliency(data: Data, ddp: Ddp) -> Results:
    model, x = of(ddp), data.x.clone().requires_grad_(True)
    supervised(data, model(x, data.edge_index)).backward()
    return {'grad': x.grad, 'importance': x.grad.abs().mean(dim=0)}


def saliency_of_data_x(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    data.x.requires_grad_()
    model(data.x, data.edge_index).softmax(-1)[:, 0].sum().backward()
    return {'scores': data.x.grad.norm(dim=-1)}


def gradient_of_features(data: Data, ddp: Ddp) -> Results:
    model, x = of(ddp), data.x.detach().requires_grad_(True)
    loss = supervised(data, model(x, data.edge_index))
    (grad,) = torch.autograd.grad(loss, x)
    return {'grad': grad}


def gradient_of_edge_weights(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
            return self.conv(x, edge_index, weight)

    torch.manual_seed(0)
    model = ddp(Model().double())
    weight = data.edge_weight.clone().requires_grad_()
    supervised(data, model(data.x, data.edge_index, weight)).backward()
    return {'grad': weight.grad}


def learned_features(data: Data, ddp: Ddp) -> Results:
    """Adversarial features: steps on x, by the sign of its gradient (FLAG without draws)."""
    model, delta = of(ddp), torch.zeros_like(data.x, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = supervised(data, model(data.x + delta, data.edge_index)) / 3
        loss.backward()
        delta.data = delta.detach() + 0.05 * torch.sign(delta.grad.detach())
        delta.grad[:] = 0
        losses.append(loss.item())
    optimizer.step()
    return {'losses': losses, 'delta': delta.detach(), 'weights': weights(model)}


def gradient_penalty(data: Data, ddp: Ddp) -> Results:
    """Second derivatives, by create_graph, of a model of rows."""
    torch.manual_seed(0)
    model = ddp(mlp(6, 8, 1).double())

    def loss_of() -> Tensor:
        x = data.x.detach().clone().requires_grad_(True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.mse_loss(out.squeeze(-1), data.y.double()) + (grad.norm(dim=-1) - 1).pow(2).mean()

    return {'losses': descend(loss_of, model, 0.02), 'weights': weights(model)}


def gradient_penalty_of_a_gnn(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)

    def loss_of() -> Tensor:
        x = data.x.detach().clone().requires_grad_(True)
        loss = supervised(data, model(x, data.edge_index))
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + 10 * grad.pow(2).sum()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def gradients_of_parameters(data: Data, ddp: Ddp) -> Results:
    """SGD by hand, with autograd.grad."""
    model = of(ddp)
    parameters = list(model.parameters())
    for _ in range(3):
        loss = supervised(data, model(data.x, data.edge_index))
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter -= 0.1 * grad
    return {'loss': loss.item(), 'weights': weights(model)}


def gradients_by_hand(data: Data, ddp: Ddp) -> Results:
    """SGD by hand, with p.grad; the norm of all of it is logged."""
    model, norms = of(ddp), []
    for _ in range(3):
        model.zero_grad()
        supervised(data, model(data.x, data.edge_index)).backward()
        norms.append(sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
    return {'norms': norms, 'weights': weights(model)}


def retained_gradients(data: Data, ddp: Ddp) -> Results:
    model = of(ddp)
    out = model(data.x, data.edge_index)
    out.retain_grad()
    supervised(data, out).backward()
    return {'grad': out.grad}


def hooks_of_tensors(data: Data, ddp: Ddp) -> Results:
    """Gradients of the output are cut at a norm; what passes is kept."""
    model, seen = of(ddp), []

    def hook(grad: Tensor) -> Tensor:
        seen.append(grad.norm().item())
        return grad * 0.5

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        out.register_hook(hook)
        return supervised(data, out)

    return {'losses': descend(loss_of, model), 'seen': seen, 'weights': weights(model)}


def hooks_of_modules(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    net, hidden = Net(6, 8, 3).double(), []
    net.conv1.register_forward_hook(lambda module, args, out: hidden.append(out.mean().item()))
    model = ddp(net)
    losses = descend(lambda: supervised(data, model(data.x, data.edge_index)), model)
    return {'losses': losses, 'hidden': hidden}


def activations_by_hook(data: Data, ddp: Ddp) -> Results:
    """Grad-CAM: activations and their gradients of the first layer."""
    torch.manual_seed(0)
    net, kept = Net(6, 8, 3).double(), {}

    def hook(module: Module, args: Any, out: Tensor) -> None:
        out.retain_grad()
        kept['out'] = out

    net.conv1.register_forward_hook(hook)
    supervised(data, ddp(net)(data.x, data.edge_index)).backward()
    alpha = kept['out'].grad.mean(dim=0)
    return {'alpha': alpha, 'cam': (alpha * kept['out']).sum(dim=-1).relu()}


def reversed_gradients(data: Data, ddp: Ddp) -> Results:
    """A custom autograd Function of rows: forward as it is, backward with the other sign."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
            ctx.scale = scale
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return -ctx.scale * grad, None

    torch.manual_seed(0)
    model, critic = ddp(Net(6, 8, 3).double()), ddp(Linear(3, 1).double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        guess = critic(Reverse.apply(out, 0.5)).squeeze(-1)
        target = data.test_mask.double()
        return supervised(data, out) + F.binary_cross_entropy_with_logits(guess, target)

    losses = descend(loss_of, [*model.parameters(), *critic.parameters()])
    return {'losses': losses, 'weights': weights(model), 'critic': weights(critic)}


def column_sum_function(data: Data, ddp: Ddp) -> Results:
    """A custom Function that sums over all nodes, with its own backward."""

    class Total(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.count = x.size(0)
            return x.sum(dim=0)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.expand(ctx.count, -1)

    torch.manual_seed(0)
    model = ddp(Linear(6, 3).double())
    losses = descend(lambda: (Total.apply(model(data.x)) / 91 - 1).pow(2).sum(), model, 0.02)
    return {'losses': losses, 'weights': weights(model)}


def straight_through(data: Data, ddp: Ddp) -> Results:
    """Hard choices forward, soft ones backward; counts of the choices are a loss."""
    model = of(ddp)

    def loss_of() -> Tensor:
        soft = model(data.x, data.edge_index).softmax(dim=-1)
        hard = F.one_hot(soft.argmax(-1), 3) - soft.detach() + soft
        return (hard.mean(dim=0) - 1 / 3).pow(2).sum() + (hard * data.x[:, :3]).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def checkpointed(data: Data, ddp: Ddp) -> Results:
    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = GCNConv(6, 8), GCNConv(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = checkpoint(self.conv1, x, edge_index, use_reentrant=False)
            x = checkpoint(lambda h: (h - h.mean(0)).relu(), x, use_reentrant=False)
            return self.conv2(x, edge_index)

    torch.manual_seed(0)
    model = ddp(Model().double())
    losses = descend(lambda: supervised(data, model(data.x, data.edge_index)), model)
    return {'losses': losses, 'weights': weights(model)}


def called_with_other_weights(data: Data, ddp: Ddp) -> Results:
    """functional_call, as sharpness-aware and meta learning do."""
    model = of(ddp)

    def loss_of() -> Tensor:
        noisy = {name: p + 0.01 * p.sign().detach() for name, p in model.named_parameters()}
        return supervised(data, functional_call(model, noisy, (data.x, data.edge_index)))

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def partly_in_bfloat16(data: Data, ddp: Ddp) -> Results:
    """Autocast around the rows' part of a model in float32; its decisions are compared."""
    torch.manual_seed(0)
    model = ddp(Linear(6, 3))
    x = data.x.float()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = model(x)
    return {'dtype': str(out.dtype), 'out': out.detach(), 'double': out.detach().double()}


def without_gradients(data: Data, ddp: Ddp) -> Results:
    model = of(ddp).eval()
    with torch.inference_mode():
        out = model(data.x, data.edge_index)
        entropy = -(out.softmax(-1) * out.log_softmax(-1)).sum(-1)
    return {'entropy': entropy.mean().item(), 'grad': out.requires_grad}
