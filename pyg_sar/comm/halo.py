"""All halo rows at once, as an ordinary differentiable operation: the one_shot mode.

With the halo after the own rows a layer is plain PyG. Its memory grows with the halo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.functions import communicates, once_differentiable


def with_halo(x: Tensor, exchange: Exchange) -> Tensor:
    """Own rows, then halo rows: what every local source id refers to.

    | forward:  ``out = [x; rows received]``
    | backward: ``grad_x = grad_out[:num_own] + gradients the readers of own rows send back``

    From ``[num_own, ...]`` to ``[num_own + num_halo, ...]``. Collective: one all-to-all, and one in
    backward if x needs a gradient.
    """
    if exchange.shard.world_size == 1:
        return x
    out: Tensor = _Halo.apply(x, exchange, _append_halo, _sum_at_owner)
    return out


def from_halo(values: Tensor, exchange: Exchange) -> Tensor:
    """Sums what every rank holds for a node at the node's owner: the adjoint of `with_halo`.

    | forward:  ``out = values[:num_own] + what the readers of own rows hold for them``
    | backward: ``grad_values = with_halo(grad_out)``

    From ``[num_own + num_halo, ...]`` to ``[num_own, ...]``. Collective: one all-to-all, and one in
    backward.
    """
    if exchange.shard.world_size == 1:
        return values
    out: Tensor = _Halo.apply(values, exchange, _sum_at_owner, _append_halo)
    return out


Move = Callable[[Tensor, Exchange], Tensor]


@communicates
class _Halo(torch.autograd.Function):
    """A move of rows between ranks, with its adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, move: Move, adjoint: Move) -> Tensor:
        ctx.exchange, ctx.adjoint = exchange, adjoint
        return move(x, exchange)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.adjoint(grads[0], ctx.exchange), None, None, None


def _append_halo(x: Tensor, exchange: Exchange) -> Tensor:
    (halo,) = exchange.fetch_all([x])
    return torch.cat([x, halo])


def _sum_at_owner(values: Tensor, exchange: Exchange) -> Tensor:
    num_own = exchange.shard.num_own
    out = values[:num_own].clone(memory_format=torch.contiguous_format)
    exchange.return_all([values[num_own:]], [out])
    return out
