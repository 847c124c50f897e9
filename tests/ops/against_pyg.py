"""A layer of the small graph on ranks against PyG: its rows, every gradient, and the paths."""

from __future__ import annotations

import copy
from typing import Any

import torch
from small_graphs import assert_close, small_graph
from torch import Tensor

import pyg_sar

MODES = ('sequential', 'sequential_no_remat', 'one_shot')


def values(
    module: torch.nn.Module, data: Any, *, needs_x: bool = True, edges: bool = True, **more: Any
) -> list[Tensor]:
    """The rows, then the gradients of x, of the edge features and of all parameters."""
    x = data.x.detach().requires_grad_(needs_x)
    edge_attr = data.edge_attr.detach().requires_grad_()
    out = module(x, data.edge_index, *[edge_attr] * edges, **more)
    if out.requires_grad:
        (out * torch.sin(3 * out.detach())).sum().backward()
    leaves = [x, edge_attr, *module.parameters()]
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
    return [pyg_sar.gather(t.detach()) for t in (out, *grads)]


def compared(
    module: torch.nn.Module,
    data: Any,
    mode: str = 'sequential',
    *,
    tolerance: float = 1e-10,
    **options: Any,
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The layer on ranks and the plain one; `options` are those of :func:`values`."""
    plain = copy.deepcopy(module)
    wrapped = pyg_sar.DistributedDataParallel(module, mode=mode)
    want = values(plain, small_graph(), **options)
    for ours, theirs in zip(values(wrapped, data, **options), want, strict=True):
        assert_close(ours, theirs, tolerance=tolerance)
    return wrapped, plain


def paths_of(model: torch.nn.Module) -> set[str]:
    """How the messages of its convs are summed."""
    convs = [module for module in model.modules() if isinstance(module, pyg_sar.SARConv)]
    plans = [each for conv in convs for each in conv._sar.plans.values()]
    return {each.path for each in plans if each.function.endswith('.message')}
