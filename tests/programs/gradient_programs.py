"""Gradients: several backwards, penalties, frozen and new layers, checkpoints, sparse rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from ddp_model import Net
from shared import Ddp, Results, named, parts, programs
from three_steps import inner, model_of, supervised
from torch import Tensor
from torch.nn import Linear, Module
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv


def loss_of(model: Any, data: Data, scale: float = 1.0) -> Tensor:
    return supervised(model(scale * data.x, data.edge_index), data)


def grads(*models: Module) -> Results:
    return {str(i): [p.grad for p in model.parameters()] for i, model in enumerate(models)}


def two_forwards_then_two_backwards(data: Data, ddp: Ddp) -> Results:
    """And then a penalty of the weights by itself."""
    model = model_of(ddp, Net)
    first, second = loss_of(model, data), loss_of(model, data, 2)
    first.backward()
    second.backward()
    sum(p.square().sum() for p in model.parameters()).backward()
    return grads(model)


def optimizer_in_backward(data: Data, ddp: Ddp) -> Results:
    """Hooks from before and after the model became parallel; one parameter is used twice."""
    torch.manual_seed(0)
    plain = Net().double()

    def step(p: Tensor) -> None:
        p.add_(p.grad, alpha=-0.3)
        p.grad = None

    plain.head.weight.register_post_accumulate_grad_hook(step)
    model = ddp(plain)
    for p in model.parameters():
        if p is not plain.head.weight:
            p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (loss_of(model, data) + 0.1 * plain.head.weight.square().sum()).backward()
        assert all(p.grad is None for p in model.parameters())
    return {'weights': list(model.parameters())}


def no_sync_in_other_orders(data: Data, ddp: Ddp) -> Results:
    """After a gradient that is whole; before zero_grad; with a gradient that a program changes."""
    first, second = model_of(ddp, Net), model_of(ddp, Net)

    def quiet(model: Any) -> Any:
        return model.no_sync() if hasattr(model, 'no_sync') else nullcontext()

    loss_of(first, data).backward()
    with quiet(first):
        (2 * loss_of(first, data)).backward()
        (3 * loss_of(first, data)).backward()
    (4 * loss_of(first, data)).backward()
    for clears in (True, False):
        with quiet(second):
            loss_of(second, data).backward()
        if clears:
            second.zero_grad()
    for p in second.parameters():
        p.grad.mul_(0.5)
    loss_of(second, data).backward()
    return grads(first, second)


def unfreezing(data: Data, ddp: Ddp) -> Results:
    """Layers that were frozen as the model became parallel; one that its forward never sees."""
    torch.manual_seed(0)
    plain, other = Net().double(), Net().double()
    plain.first.requires_grad_(False)
    other.requires_grad_(False)
    model, second = ddp(plain), ddp(other)
    loss_of(model, data).backward()
    plain.first.requires_grad_(True)
    plain.head.requires_grad_(False)
    loss_of(model, data).backward()
    other.first.requires_grad_(True)
    inner(second).first(data.x, data.edge_index).square().mean().backward()
    return grads(model, second)


def new_layer_after_a_step(data: Data, ddp: Ddp) -> Results:
    """And another dtype for a while."""
    model = model_of(ddp, Net)
    loss_of(model, data).backward()
    torch.manual_seed(7)
    inner(model).head = Linear(8, 3).double()
    loss_of(model, data).backward()
    model.zero_grad()
    model.float().double()
    loss_of(model, data).backward()
    return grads(model)


def unused_parameters(data: Data, ddp: Ddp) -> Results:
    model = model_of(ddp, lambda: Net(has_unused=True))
    for _ in range(2):
        loss_of(model, data).backward()
    assert inner(model).unused.weight.grad is None
    return grads(model)


def sparse_gradient(data: Data, ddp: Ddp) -> Results:
    @parts(kinds=partial(torch.nn.Embedding, 5, 6, sparse=True), conv=(SAGEConv, 6, 3))
    def net(m: Any, kinds: Tensor, edge_index: Tensor) -> Tensor:
        return m.conv(m.kinds(kinds), edge_index)

    model = model_of(ddp, net)
    for _ in range(2):
        supervised(model(data.y, data.edge_index), data).backward()
    return {'grads': [p.grad.to_dense() for p in model.parameters()]}


def leaves_beside_the_model(data: Data, ddp: Ddp) -> Results:
    """An input that was computed; losses of the leaf alone; gradients of some inputs."""
    model, x = model_of(ddp, Net), data.x.clone().requires_grad_()
    out = model((2 * x).tanh() + x, edge_index=data.edge_index)
    (supervised(out, data) + x.square().mean() + x.cos().sum()).backward()
    x.pow(4).mean().backward()
    other, y = model_of(ddp, Net), data.x.clone().requires_grad_()
    loss = supervised(other(y, data.edge_index), data)
    loss.backward(inputs=[y, inner(other).head.weight], retain_graph=True)
    loss.backward(inputs=[inner(other).second.bias])
    return grads(model, other) | {'x': x.grad, 'y': y.grad}


@parts(first=(SAGEConv, 6, 8), second=partial(GATConv, 8, 4, heads=2), head=(Linear, 8, 3))
def checkpointed_layers(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    h = checkpoint(m.first, x, edge_index, use_reentrant=True).tanh()
    h = checkpoint(m.second, h, edge_index, use_reentrant=True)
    return m.head(checkpoint(m.second, h, edge_index, use_reentrant=True))


def reentrant_checkpoint_inside(data: Data, ddp: Ddp, x: Tensor) -> list[Module]:
    """Hooks of parameters run once for a backward."""
    model, calls = model_of(ddp, checkpointed_layers), list[Tensor]()
    next(model.parameters()).register_post_accumulate_grad_hook(calls.append)
    for _ in range(2):
        supervised(model(x, data.edge_index), data).backward()
    assert len(calls) == 2
    return [model]


def checkpoint_around(data: Data, ddp: Ddp, x: Tensor) -> list[Module]:
    model = model_of(ddp, Net)
    supervised(checkpoint(model, 2 * x, data.edge_index, use_reentrant=False), data).backward()
    return [model]


def reentrant_checkpoint_around(data: Data, ddp: Ddp, x: Tensor) -> list[Module]:
    first, second = model_of(ddp, lambda: GCNConv(6, 6)), model_of(ddp, Net)
    h = checkpoint(first, 2 * x, data.edge_index, use_reentrant=True)
    supervised(checkpoint(second, h, data.edge_index, use_reentrant=True), data).backward()
    return [first, second]


def by_rows_with_hooks(data: Data, ddp: Ddp) -> Results:
    """A hook of hidden rows sees the whole gradient, however backward is started."""
    first, second = model_of(ddp, lambda: GCNConv(6, 8)), model_of(ddp, lambda: GCNConv(8, 3))
    x = data.x.clone().requires_grad_()
    hidden = first(x, data.edge_index)
    hidden.register_hook(lambda grad: grad / grad.norm())
    hidden.register_hook(lambda grad: grad.cumsum(0) / 9)  # plain, of the whole
    out = second(checkpoint(torch.relu, hidden, use_reentrant=False), data.edge_index)
    loss = supervised(out, data)
    found: Results = {'grad': torch.autograd.grad(loss, [x, hidden], retain_graph=True)}
    starts: dict[str, Callable[[], Any]] = {
        'all': lambda: loss.backward(retain_graph=True),
        'inputs': lambda: loss.backward(inputs=[x, hidden], retain_graph=True),
        'of rows': lambda: out.backward(out.detach().sin(), retain_graph=True),
    }
    for name, start in starts.items():
        x.grad = None
        start()
        found[name] = x.grad.clone()
    unused = torch.autograd.grad(loss, [data.x.sin().requires_grad_(), x], materialize_grads=True)
    return found | {'unused': unused}


def grad_of_rows_through_a_checkpoint(data: Data, ddp: Ddp) -> Results:
    first, second = model_of(ddp, lambda: GATConv(6, 8)), model_of(ddp, lambda: GATConv(8, 3))
    x = data.x.clone().requires_grad_()
    hidden = checkpoint(first, x, data.edge_index, use_reentrant=False).relu()
    loss = supervised(second(hidden, data.edge_index), data)
    return {'grad': torch.autograd.grad(loss, x)}


def taken_out_of_a_model(data: Data, ddp: Ddp) -> Results:
    """A head that makes room for a new one, and a conv, stay in use beside the model."""
    model = model_of(ddp, Net)
    old_head, model.head = model.head, Linear(8, 3).double()
    conv, model.first = model.first, ddp(SAGEConv(6, 8).double())
    learning = [*model.parameters(), *old_head.parameters(), *conv.parameters()]
    optimizer, losses = torch.optim.SGD(learning, lr=0.3), []
    for _ in range(3):
        hidden = (conv(data.x, data.edge_index) + model.first(data.x, data.edge_index)).relu()
        loss = supervised(model.head(hidden), data) + supervised(old_head(hidden).sin(), data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {'losses': losses, 'grads': [p.grad for p in learning]}


def models_gone_before_backward(data: Data, ddp: Ddp) -> Results:
    """A loop over seeds that keeps losses and parameters alone."""
    losses, learning = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        model = ddp(Net().double())
        losses.append(loss_of(model, data))
        learning += model.parameters()
    del model
    torch.stack(losses).logsumexp(0).backward()
    return {'grads': [p.grad for p in learning]}


Trained = Callable[[Data, Ddp, Tensor], list[Module]]


def with_checkpoint(data: Data, ddp: Ddp, train: Trained) -> Results:
    x = data.x.clone().requires_grad_()
    return grads(*train(data, ddp, x)) | {'x': x.grad}


PROGRAMS = programs(
    with_checkpoint,
    named(reentrant_checkpoint_inside, checkpoint_around, reentrant_checkpoint_around),
)
