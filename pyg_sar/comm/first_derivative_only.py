"""Second derivatives end in an error, whichever way they are asked for.

They would take what backward computes again for constants, and be silently wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.faults.errors import place


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the backward of an autograd Function one that has no derivative itself.

    torch's decorator of this name notices only what ``Tensor.backward`` visits and where the
    gradients that come in have a history: ``torch.autograd.grad(first, inputs)`` would leave out
    the second derivative without a word.

    Raises:
        RuntimeError: When a gradient of what `backward` returns is computed.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Tensor | None) -> Any:
        if not torch.is_grad_enabled():  # no create_graph=True
            return backward(ctx, *grads)
        with torch.no_grad():
            found = backward(ctx, *grads)
        known = [*grads, *ctx.saved_tensors]
        sources = [t for t in known if t is not None and t.requires_grad]
        if not sources:
            return found
        results = found if isinstance(found, tuple) else (found,)
        return tuple(
            _Once.apply(place(), r, *sources)  # type: ignore[no-untyped-call]
            if isinstance(r, Tensor)
            else r
            for r in results
        )

    return once


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
