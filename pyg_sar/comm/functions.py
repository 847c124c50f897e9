"""Decorators of autograd Functions that communicate.

Their backward is in the layer of their forward. It has no derivative itself: second derivatives
would take values that backward computes again for constants, and be silently wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyg_sar.comm.errors import in_layer, layer_and_phase, location
from pyg_sar.comm.ranks import current

Function = TypeVar('Function', bound=type)

torch_apply: Any = vars(torch.autograd.Function)['apply']
"""torch's own, before the one of users' Functions was replaced."""


def communicates(function: Function) -> Function:
    """For autograd Functions that communicate: their backward is in the layer of their forward."""
    forward: Callable[..., Any] = function.forward  # type: ignore[attr-defined]
    backward: Callable[..., Any] = function.backward  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def noting(ctx: Any, *args: Any) -> Any:
        ctx.layer = layer_and_phase.value[0]
        return forward(ctx, *args)

    @functools.wraps(backward)
    def naming(ctx: Any, *grads: Any) -> Any:
        with in_layer(ctx.layer, 'backward'):
            try:
                return backward(ctx, *grads)
            except BaseException as error:
                current().left_by(error)
                raise

    function.forward = staticmethod(noting)  # type: ignore[attr-defined]
    function.backward = staticmethod(naming)  # type: ignore[attr-defined]
    function.apply = torch_apply  # type: ignore[attr-defined]
    return function


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the backward of an autograd Function one that has no derivative itself.

    A gradient of what `backward` returns is a RuntimeError. torch's decorator of this name notices
    only what ``Tensor.backward`` visits and where the gradients that come in have a history:
    ``torch.autograd.grad(first, inputs)`` would leave out the second derivative without a word.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Tensor | None) -> Any:
        if not torch.is_grad_enabled():  # no create_graph=True
            return backward(ctx, *grads)
        with torch.no_grad():
            out = backward(ctx, *grads)
        tensors = (*grads, *ctx.saved_tensors)
        sources = [t for t in tensors if t is not None and t.requires_grad]
        if not sources:
            return out
        results = out if isinstance(out, tuple) else (out,)
        return tuple(only_once(r, *sources) if isinstance(r, Tensor) else r for r in results)

    return once


def only_once(result: Tensor, *sources: Tensor) -> Tensor:
    """A first derivative, computed from `sources`: a gradient of it raises a RuntimeError."""
    out: Tensor = _Once.apply(location(), result, *sources)
    return out


class _Once(torch.autograd.Function):
    """A first derivative, with what it depends on."""

    @staticmethod
    def forward(ctx: Any, where: str, result: Tensor, *sources: Tensor) -> Tensor:
        ctx.where = where
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        where = f' through {ctx.where}' if ctx.where else ''
        raise RuntimeError(
            f'expected first derivatives only (got a gradient of a gradient{where}): on a graph '
            'that is cut pyg_sar computes no second ones'
        )
