"""The weighted path: sums of ``w_e * x_j`` with weights per edge and head that take a gradient.

Attention, once the weights are known: GATConv's message, or GCNConv's with learnable weights. As on
the linear path the rows' gradient needs no second receive. The weights' gradient does: it is the
product of the output gradient with the rows. Both are made in one pass over the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.linear import split_rows
from pyg_sar.comm import Exchange, GradientReturn, communicates, once_differentiable
from pyg_sar.kernels.weighted_sums import add_weighted_sums, edge_dots
from pyg_sar.shard.plan import Block, Plan


def weighted_sum(
    x: Tensor,
    weight: Tensor,
    plan: Plan,
    exchange: Exchange,
    *,
    keep_rows: bool = False,
    one_shot: bool = False,
) -> Tensor:
    """``out[i, h] = sum of weight[e, h] * x[j, h] over all edges e: j -> i``, remote ones included.

    ========  ======================  ==================================================
    tensor    shape                   meaning
    ========  ======================  ==================================================
    x         ``[num_own, H, C]``     own rows; floating point
    weight    ``[num_edges, H]``      weights of the edges of `plan`; dtype of x
    out       ``[num_dst, H, C]``     sums over all in-edges
    ========  ======================  ==================================================

    | forward:  receive the rows of block q; ``out[:, h] += A_qh @ rows_q[:, h]``
    | backward: ``grad_rows_q[:, h] = A_qh^T @ grad_out[:, h]``; send them to q; if the weight needs
      a gradient receive the rows again; ``grad_weight[e, h] = <grad_out[i, h], rows_q[j, h]>``

    Saved for backward: x if the weight needs a gradient, the weight if x does. Never is anything of
    ``[num_edges, H, C]`` made. Point-to-point messages: one per step in forward; in backward one
    per step if the weight needs a gradient, and one if x does (with `one_shot` one all-to-all in
    forward, and one in backward if x needs a gradient).

    Args:
        x: Own rows.
        weight: The weights.
        plan: The blocks.
        exchange: The exchange of the plan's shard.
        keep_rows: Keep the rows that were received instead of receiving them again.
        one_shot: Exchange all halo rows at once; they are kept.
    """
    # Nothing is kept where backward would not ask for it.
    keep_rows = (keep_rows or one_shot) and torch.is_grad_enabled() and weight.requires_grad
    out: Tensor = _WeightedSum.apply(  # type: ignore[no-untyped-call]
        x.contiguous(), weight, plan, exchange, one_shot, keep_rows
    )
    return out


@communicates
class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        plan: Plan,
        exchange: Exchange,
        one_shot: bool,
        keep_rows: bool,
    ) -> Tensor:
        received: list[Tensor] | None = [] if keep_rows else None
        out = _sum_blocks(x, weight, plan, _fetched(x, plan, exchange, one_shot, received))
        ctx.plan, ctx.exchange, ctx.one_shot, ctx.keep_rows = plan, exchange, one_shot, keep_rows
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(
            x if needs_weight else None, weight if needs_x else None, *(received or ())
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *received = ctx.saved_tensors
        plan, exchange, one_shot = ctx.plan, ctx.exchange, ctx.one_shot
        sources = None
        if ctx.needs_input_grad[1]:
            sources = (
                _kept(x, received, plan, one_shot)
                if ctx.keep_rows
                else _fetched(x, plan, exchange, one_shot, None)
            )
        gradients = _gradients(grads[0].contiguous(), weight, sources, plan, exchange, one_shot)
        return *gradients, None, None, None, None


def _fetched(
    x: Tensor, plan: Plan, exchange: Exchange, one_shot: bool, received: list[Tensor] | None
) -> Iterator[Tensor]:
    """The source rows of every block; what came from other ranks is added to `received`."""
    if one_shot:
        (halo,) = exchange.fetch_all([x])
        if received is not None:
            received.append(halo)
        yield from split_rows(x, halo, plan)
        return
    num_own_blocks = len(plan.shard.parts)
    for i, (rows,) in enumerate(exchange.fetch([x], keep=received is not None)):
        if received is not None and i >= num_own_blocks:
            received.append(rows)
        yield rows


def _kept(x: Tensor, received: list[Tensor], plan: Plan, one_shot: bool) -> Iterable[Tensor]:
    """The same from what was kept."""
    if one_shot:
        return split_rows(x, received[0], plan)
    ranges = (plan.shard.source_range(part) for part in plan.shard.parts)
    return [*(x[start:end] for start, end in ranges), *received]


def _sum_blocks(x: Tensor, weight: Tensor, plan: Plan, sources: Iterable[Tensor]) -> Tensor:
    out = x.new_zeros(plan.shard.num_dst, *x.shape[1:])
    is_zero = True
    for block, rows in zip(plan.blocks, sources, strict=True):
        if block.num_edges:
            add_weighted_sums(out, rows, block.by_dst, block.take(weight), is_zero=is_zero)
            is_zero = False
    return out


def _gradients(
    grad_out: Tensor,
    weight: Tensor | None,
    sources: Iterable[Tensor] | None,
    plan: Plan,
    exchange: Exchange,
    one_shot: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of x if `weight` is given, and that of the weight if `sources` are."""
    grad_x, grad_halo, grad_weight, returned = None, None, None, None
    row_shape = grad_out.shape[1:]
    if weight is not None:
        grad_x = grad_out.new_zeros(plan.shard.num_own, *row_shape)
        if one_shot:
            grad_halo = grad_out.new_empty(plan.shard.num_halo, *row_shape)
            targets = split_rows(grad_x, grad_halo, plan)
        else:
            returned = GradientReturn(exchange, [grad_x])
    if sources is not None:
        grad_weight = grad_out.new_empty(plan.num_edges, grad_out.size(1))
    each = repeat(None, len(plan.blocks)) if sources is None else sources
    for i, (block, rows) in enumerate(zip(plan.blocks, each, strict=True)):
        if rows is not None and grad_weight is not None and block.num_edges:
            block.put(grad_weight, edge_dots(grad_out, rows, block.by_dst))
        if weight is None:
            continue
        if returned is None:
            _write_gradient(targets[i], grad_out, weight, block)
        else:
            _write_gradient(returned.rows()[0], grad_out, weight, block)
            returned.send()
    if returned is not None:
        returned.finish()
    elif grad_x is not None and grad_halo is not None:
        exchange.return_all([grad_halo], [grad_x])
    return grad_x, grad_weight


def _write_gradient(rows: Tensor, grad_out: Tensor, weight: Tensor, block: Block) -> None:
    """Overwrites `rows` by the gradient of the block's source rows."""
    rows.zero_()
    if block.num_edges:
        add_weighted_sums(rows, grad_out, block.by_src, block.take(weight), is_zero=True)
