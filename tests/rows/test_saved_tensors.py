"""What autograd saves of rows: a checkpoint computes it again, hooks of users keep it elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCNConv
from torch_geometric.utils import scatter

Step = Callable[[Tensor, Any], Tensor]
STEPS: dict[str, Step] = {
    'where': lambda h, data: torch.where(h > 0, h, 0.1 * h),
    'mask of rows': lambda h, data: torch.where(data.y.view(-1, 1) > 0, h.sin(), h),
    'masked_fill': lambda h, data: h.masked_fill(h > 0.1, 0.5).tanh(),
    'constant rows': lambda h, data: h * data.x.sin(),
    'constant of the whole': lambda h, data: h * torch.linspace(0, 1, h.size(0)).double()[:, None],
    'degrees': lambda h, data: h / (1 + data.y.view(-1, 1)),
    'clamp': lambda h, data: h.clamp(-0.1, 0.1) + h.relu() + F.leaky_relu(h),
    'mse': lambda h, data: h * F.mse_loss(h, data.x),
    'cross entropy': lambda h, data: h * F.cross_entropy(h, data.y),
    'max of a row': lambda h, data: h - h.max(dim=1, keepdim=True).values,
    'max of all': lambda h, data: h - h.max(dim=0).values,
    'softmax': lambda h, data: h.softmax(dim=-1) * h.norm(dim=0),
    'rows of a mask': lambda h, data: h + h[data.y > 0].exp().mean(dim=0),
    'messages': lambda h, data: scatter(
        h[data.edge_index[0]], data.edge_index[1], 0, h.size(0), 'mean'
    ),
}


@as_one_process(by='processes')
def test_arguments_of_a_checkpoint_inside_of_another_stay_rows(data: Any, ddp: Wrap) -> Any:
    """Edges and constant rows are arguments of a checkpoint inside of another one."""
    model = ddp(torch.nn.ModuleList([GCNConv(6, 6), GCNConv(6, 3)]).double())

    def inner(h: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = model[0](h - h.mean(dim=0), edge_index) * x.std(dim=0)
        return out

    def outer(h: Tensor, x: Tensor, edge_index: Tensor) -> Any:
        return checkpoint(inner, h.sin(), x, edge_index, use_reentrant=False)

    h = checkpoint(
        outer, model[0](data.x, data.edge_index), data.x, data.edge_index, use_reentrant=False
    )
    F.cross_entropy(model[1](h, data.edge_index), data.y).backward()
    return [p.grad for p in model.parameters()]


def _again(step: Step, h: Tensor, data: Any) -> Tensor:
    out: Tensor = checkpoint(step, h, data, use_reentrant=False)
    return out


def _again_and_more(step: Step, h: Tensor, data: Any) -> Tensor:
    def of_two(h: Tensor) -> Tensor:
        return step(_again(step, h.sin(), data), data)

    out: Tensor = checkpoint(of_two, h, use_reentrant=False)
    return out


def _in_files(step: Step, h: Tensor, data: Any) -> Tensor:
    def pack(tensor: Tensor) -> bytes:
        file = io.BytesIO()
        torch.save(tensor, file)
        return file.getvalue()

    with saved_tensors_hooks(pack, lambda saved: torch.load(io.BytesIO(saved))):
        return step(h, data)


def _on_cpu(step: Step, h: Tensor, data: Any) -> Tensor:
    with save_on_cpu():
        return step(h, data)


def _again_on_cpu(step: Step, h: Tensor, data: Any) -> Tensor:
    with save_on_cpu():
        return _again(step, h, data)


AROUND = [_again, _again_and_more, _in_files, _on_cpu, _again_on_cpu]


@pytest.mark.parametrize('around', AROUND)
@as_one_process()
def test_what_is_saved_may_be_elsewhere(
    data: Any, ddp: Wrap, around: Callable[[Step, Tensor, Any], Tensor]
) -> Any:
    found: dict[str, Any] = {}
    for name, step in STEPS.items():
        torch.manual_seed(0)
        model = ddp(torch.nn.ModuleList([GCNConv(6, 6), GCNConv(6, 3)]).double())
        h = around(step, model[0](data.x, data.edge_index), data)
        out = model[1](h, data.edge_index)
        F.cross_entropy(out, data.y).backward()
        found[name] = out, [p.grad for p in model.parameters()]
    return found
