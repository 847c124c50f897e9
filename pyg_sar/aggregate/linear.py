"""The linear path: sums of ``w_ij * x_j`` with weights that take no gradient.

Backward needs no second receive: the gradient of a block's source rows is the transposed sum of
the output gradient, which the destination's rank holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import Exchange, GradientReturn, Rows, communicates, once_differentiable
from pyg_sar.kernels.bag_sums import add_bag_sums, bag_sums
from pyg_sar.shard.plan import Block, Plan


def linear_sum(
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    exchange: Exchange,
    *,
    one_shot: bool = False,
    mean: bool = False,
) -> Tensor:
    """``out[i] = sum of w_ij * x[j] over all edges (j, i)``, remote ones included.

    ========  ======================  ==================================================
    tensor    shape                   meaning
    ========  ======================  ==================================================
    x         ``[num_own, F]``        own rows; floating point
    weight    ``[num_edges]`` / None  one weight per edge of `plan`; takes no gradient
    out       ``[num_dst, F]``        sums over all in-edges; with ``mean`` divided by their number
    ========  ======================  ==================================================

    | forward:  receive the rows of block q; ``out += A_q @ rows_q``
    | backward: ``grad_rows_q = A_q^T @ grad_out``; send them to q; own rows' gradients are summed

    Saved for backward: nothing but the weight. Point-to-point messages: one per step in forward,
    one per step in backward if x needs a gradient (with ``one_shot`` one all-to-all each).
    """
    out: Tensor = _LinearSum.apply(  # type: ignore[no-untyped-call]
        x, weight, plan, exchange, one_shot, mean
    )
    return out


@communicates
class _LinearSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        plan: Plan,
        exchange: Exchange,
        one_shot: bool,
        mean: bool,
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.plan, ctx.exchange, ctx.one_shot, ctx.mean = plan, exchange, one_shot, mean
        out = _sum_blocks(x, weight, plan, exchange, one_shot)
        return out.div_(_divisor(plan, out).view(-1, 1)) if mean else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_x = None
        if ctx.needs_input_grad[0]:
            (weight,) = ctx.saved_tensors
            grad = grads[0].contiguous()
            factor = _divisor(ctx.plan, grad).reciprocal() if ctx.mean else None
            gradients = _Gradients(grad, weight, factor)
            grad_x = _return_blocks(gradients, ctx.plan, ctx.exchange, ctx.one_shot)
        return grad_x, None, None, None, None, None


def _divisor(plan: Plan, like: Tensor) -> Tensor:
    """What a sum over in-edges is divided by for their mean, ``[num_dst]``."""
    return plan.in_degree.clamp(min=1).to(like.dtype)


def _sum_blocks(
    x: Tensor, weight: Tensor | None, plan: Plan, exchange: Exchange, one_shot: bool
) -> Tensor:
    out: Tensor | None = None
    if one_shot:
        (halo,) = exchange.fetch_all([x])
        sources: Iterable[Rows] = ([rows] for rows in split_rows(x, halo, plan))
    else:
        sources = exchange.fetch([x])
    for block, (rows,) in zip(plan.blocks, sources, strict=True):
        if block.num_edges == 0:
            continue
        block_weight = _block_weight(block, weight)
        if out is None:
            out = bag_sums(rows, block.by_dst, block_weight)
        else:
            add_bag_sums(out, rows, block.by_dst, block_weight)
    return x.new_zeros(plan.shard.num_dst, x.size(1)) if out is None else out


@dataclass(frozen=True)
class _Gradients:
    """What the gradients of source rows are made of.

    Attributes:
        grad_out: The gradient of the sums ``[num_dst, F]``.
        weight: One weight per edge, or None.
        factor: What rows of `grad_out` are multiplied by, or None.
    """

    grad_out: Tensor
    weight: Tensor | None
    factor: Tensor | None

    def of(self, block: Block) -> Tensor:
        """The gradient of the block's source rows."""
        weight = _block_weight(block, self.weight)
        return bag_sums(self.grad_out, block.by_src, weight, factor=self.factor)

    def write(self, rows: Tensor, block: Block) -> None:
        """Overwrites `rows` by the gradient of the block's source rows."""
        if block.num_edges == 0 or block.by_src.keys is not None:
            rows.zero_()
        if block.num_edges:
            weight, factor = _block_weight(block, self.weight), self.factor
            add_bag_sums(rows, self.grad_out, block.by_src, weight, factor=factor, is_zero=True)


def _return_blocks(gradients: _Gradients, plan: Plan, exchange: Exchange, one_shot: bool) -> Tensor:
    own, grad_out = plan.blocks[0], gradients.grad_out
    # With one part the own block's sum is grad_x itself, made in one pass.
    is_made = plan.shard.parts_per_rank == 1 and own.num_edges > 0
    if is_made and not one_shot:
        returned = GradientReturn(exchange, [grad_out], own=lambda: [gradients.of(own)])
        blocks = plan.blocks[1:]
    else:
        grad_x = (
            gradients.of(own)
            if is_made
            else grad_out.new_zeros(plan.shard.num_own, grad_out.size(1))
        )
        if one_shot:
            grad_halo = grad_out.new_empty(plan.shard.num_halo, *grad_out.shape[1:])
            for block, rows in zip(plan.blocks, split_rows(grad_x, grad_halo, plan), strict=True):
                if not (is_made and block is own):
                    gradients.write(rows, block)
            exchange.return_all([grad_halo], [grad_x])
            return grad_x
        returned = GradientReturn(exchange, [grad_x])
        blocks = plan.blocks
    for block in blocks:
        (rows,) = returned.rows()
        gradients.write(rows, block)
        returned.send()
    (grad_x,) = returned.finish()
    return grad_x


def _block_weight(block: Block, weight: Tensor | None) -> Tensor | None:
    return None if weight is None else block.take(weight)


def split_rows(own: Tensor, halo: Tensor, plan: Plan) -> list[Tensor]:
    """The source rows of every block: views into own and halo rows."""
    num_own = plan.shard.num_own
    rows = []
    for block in plan.blocks:
        if block.start < num_own or block.part in plan.shard.parts:
            rows.append(own[block.start : block.start + block.num_rows])
        else:
            start = block.start - num_own
            rows.append(halo[start : start + block.num_rows])
    return rows
