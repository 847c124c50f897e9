"""Compares what a conv gave on one rank with what it gave on the whole graph."""

from __future__ import annotations

from typing import Any

import torch
from conformance_case import Edges
from torch import Tensor


def flatten(output: Any, name: str = 'out') -> dict[str, Any]:
    """Tensors and Edges by name."""
    if isinstance(output, (Tensor, Edges)):
        return {name: output}
    items = output.items() if isinstance(output, dict) else enumerate(output)
    found: dict[str, Any] = {}
    for key, value in items:
        if value is not None:
            found |= flatten(value, f'{name}[{key}]')
    return found


def backward(outputs: dict[str, Any]) -> None:
    """Gradients of a sum of the outputs, weighted by fixed numbers of eighths."""
    loss: Any = 0.0
    for name, output in outputs.items():
        values = output.values if isinstance(output, Edges) else output
        if not values.requires_grad:
            continue
        if isinstance(output, Edges):
            src, dst = output.edge_index
            weight = (src * 7 + dst * 3) % 16 / 8 - 1
            weight = weight.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
        else:
            generator = torch.Generator().manual_seed(sum(name.encode()))
            weight = torch.randint(-16, 17, values.shape, generator=generator) / 8
            weight = weight.to(values.device, values.dtype)
        loss = loss + (values * weight).sum()
    if isinstance(loss, Tensor):
        loss.backward()


def output_differences(outputs: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """The largest difference of every output, all rows of it."""
    if outputs.keys() != expected.keys():
        return {f'outputs {sorted(outputs)} for {sorted(expected)}': float('inf')}
    found = {}
    for name, got in outputs.items():
        want = expected[name]
        if isinstance(want, Edges):
            found |= _edge_differences(name, got, want)
        else:
            found[name] = difference(got, want)
    return found


def _edge_differences(name: str, got: Edges, want: Edges) -> dict[str, float]:
    """As sets of (source, destination, values)."""
    rows, wanted = _sorted(got.edge_index, got.values), _sorted(want.edge_index, want.values)
    if rows[0].shape != wanted[0].shape or not torch.equal(rows[0], wanted[0]):
        return {f'edges of {name}': float('inf')}
    return {name: difference(rows[1], wanted[1])}


def _sorted(ends: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    rows = values.detach().unsqueeze(-1).flatten(1)
    order = rows[:, 0].argsort(stable=True)
    for key in (ends[1], ends[0]):
        order = order[key[order].argsort(stable=True)]
    return ends[:, order], rows[order]


def gradient(tensor: Tensor) -> Tensor:
    """Its gradient, zero where none arrived."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def difference(got: Tensor, want: Tensor) -> float:
    """The largest absolute one, relative to the largest entry of `want` where that exceeds 1."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float('inf')
    if got.numel() == 0:
        return 0.0
    scale = max(1.0, want.detach().double().abs().max().item())
    found = (got.detach().double() - want.detach().double()).abs().max().item() / scale
    return found if found == found else float('inf')
