"""Sums of ``w_e * x_j`` over in-edges: attention once its weights are known, GCN, GraphSAGE.

Backward needs no second receive for the rows: the gradient of a block's source rows is the
transposed sum of the output gradient, which the destination's rank holds. A weight that takes a
gradient needs the rows again: its gradient is their product with the output gradient, made in the
same pass over the blocks. A constant weight, or none, is the special case.

A mean is divided inside the transposed sum, by weights of 1 / in-degree, which spares a pass. With
one part per rank the gradients of remote rows are sent first, and the own block is computed while
they travel.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.blocks import block_sources, split_rows
from pyg_sar.comm import Exchange, GradientReturn, Rows, communicates, once_differentiable
from pyg_sar.kernels.bag_sums import add_bag_sums, bag_sums
from pyg_sar.kernels.weighted_sums import edge_dots, weighted_sums_and_dots
from pyg_sar.shard.plan import Block, Plan


def weighted_sum(
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    exchange: Exchange,
    *,
    keep_rows: bool = False,
    one_shot: bool = False,
    mean: bool = False,
) -> Tensor:
    """``out[i, h] = sum of weight[e, h] * x[j, h] over all edges e: j -> i``, remote ones included.

    ========  ======================  ==================================================
    tensor    shape                   meaning
    ========  ======================  ==================================================
    x         ``[num_own, H, C]``     own rows; floating point
    weight    ``[num_edges, H]``      weights of the edges of `plan`; dtype of x
    out       ``[num_dst, H, C]``     sums over all in-edges
    ========  ======================  ==================================================

    Without heads x and out are ``[..., F]``, and the weight is ``[num_edges]`` and taken for a
    constant, or None for ones.

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
        one_shot: Exchange all halo rows at once; they are kept if backward asks for them.
        mean: Divide by the number of in-edges; without heads only.
    """
    if weight is not None and weight.dim() == 1:
        weight = weight.detach()
    # Nothing is kept where backward would not ask for it.
    learns = torch.is_grad_enabled() and weight is not None and weight.requires_grad
    keep_rows = learns and (keep_rows or one_shot)
    out: Tensor = _WeightedSum.apply(  # type: ignore[no-untyped-call]
        x.contiguous(), weight, plan, exchange, one_shot, keep_rows, mean
    )
    return out


@communicates
class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        plan: Plan,
        exchange: Exchange,
        one_shot: bool,
        keep_rows: bool,
        mean: bool,
    ) -> Tensor:
        kept: list[Tensor] | None = [] if keep_rows else None
        out: Tensor | None = None
        sources = block_sources([x], plan, exchange, one_shot=one_shot, kept=kept)
        for block, (rows,) in zip(plan.blocks, sources, strict=True):
            if block.num_edges == 0:
                continue
            block_weight = None if weight is None else block.span(weight)
            if out is None:
                out = bag_sums(rows, block.by_dst, block_weight)
            else:
                add_bag_sums(out, rows, block.by_dst, block_weight)
        if out is None:
            out = x.new_zeros(plan.shard.num_dst, *x.shape[1:])
        ctx.plan, ctx.exchange, ctx.one_shot, ctx.mean = plan, exchange, one_shot, mean
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(
            x if needs_weight else None, weight if needs_x else None, *(kept or ())
        )
        return out.div_(_divisor(plan, out).view(-1, 1)) if mean else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *kept = ctx.saved_tensors
        plan, exchange, grad = ctx.plan, ctx.exchange, grads[0].contiguous()
        factor = _divisor(plan, grad).reciprocal() if ctx.mean else None
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad_x, grad_weight = None, None
        sources: Iterable[Rows] = repeat([], len(plan.blocks))
        if needs_weight:
            grad_weight = grad.new_empty(plan.num_edges, grad.size(1))
            sources = block_sources([x], plan, exchange, one_shot=ctx.one_shot, kept=kept or None)
        of_block = _BlockGradients(grad, weight, factor, grad_weight)
        if needs_x:
            grad_x = _SourceGradient(of_block, x, plan, exchange, ctx.one_shot)
        for block, rows in zip(plan.blocks, sources, strict=True):
            if grad_x is not None:
                grad_x.add(block, rows)
            else:
                of_block.write(None, block, rows)
        return None if grad_x is None else grad_x.finish(), grad_weight, *[None] * 5


def _divisor(plan: Plan, like: Tensor) -> Tensor:
    """What a sum over in-edges is divided by for their mean, ``[num_dst]``."""
    return plan.in_degree.clamp(min=1).to(like.dtype)


class _BlockGradients:
    """Makes the gradients of one block's source rows and of its edges' weights.

    Rows of `grad_out` are multiplied by `factor` ``[num_dst]`` where there is one; the weights'
    gradient is written to `grad_weight` ``[num_edges, H]`` where there is one.
    """

    def __init__(
        self,
        grad_out: Tensor,
        weight: Tensor | None,
        factor: Tensor | None,
        grad_weight: Tensor | None,
    ) -> None:
        self.grad_out, self.weight = grad_out, weight
        self.factor, self.grad_weight = factor, grad_weight

    def sums(self, block: Block, rows: Rows) -> Tensor:
        """The gradient of a block's source rows; `rows` hold them if the weights need it."""
        if self.grad_weight is None:
            return bag_sums(self.grad_out, block.by_src, self._weight(block), factor=self.factor)
        out = self.grad_out.new_empty(block.num_rows, *self.grad_out.shape[1:])
        self.write(out, block, rows)
        return out

    def write(self, out: Tensor | None, block: Block, rows: Rows) -> None:
        """Writes the gradient of source rows to `out`, if that is asked for."""
        weight, grad_weight = self._weight(block), self.grad_weight
        if grad_weight is None or not block.num_edges:
            if out is not None:
                bags, factor = block.by_src, self.factor
                add_bag_sums(out, self.grad_out, bags, weight, factor=factor, replace=True)
            return
        dots = block.span(grad_weight)
        if out is None:
            edge_dots(dots, self.grad_out, rows[0], block.by_dst)
        else:
            assert weight is not None
            weighted_sums_and_dots(out, dots, self.grad_out, rows[0], block, weight)

    def _weight(self, block: Block) -> Tensor | None:
        return None if self.weight is None else block.span(self.weight)


class _SourceGradient:
    """The gradient of the own rows, from one block after another; see :func:`weighted_sum`."""

    def __init__(
        self,
        of_block: _BlockGradients,
        x: Tensor | None,
        plan: Plan,
        exchange: Exchange,
        one_shot: bool,
    ) -> None:
        self.of_block, self.exchange, self.one_shot = of_block, exchange, one_shot
        shard, own, grad_out = plan.shard, plan.blocks[0], of_block.grad_out
        shape = grad_out.shape[1:]
        rows = [] if x is None else [x]
        # With one part the own block's sum is the gradient itself, made in one pass.
        self.made = own if shard.parts_per_rank == 1 and own.num_edges else None
        if self.made is not None and not one_shot:
            self.returned = GradientReturn(
                exchange, [grad_out], own=lambda: [of_block.sums(own, rows)]
            )
            return
        is_made = self.made is not None
        self.out = (
            of_block.sums(own, rows) if is_made else grad_out.new_empty(shard.num_own, *shape)
        )
        if one_shot:
            self.halo = grad_out.new_empty(shard.num_halo, *shape)
            self.targets = iter(split_rows(self.out, self.halo, plan))
        else:
            self.returned = GradientReturn(exchange, [self.out])

    def add(self, block: Block, rows: Rows) -> None:
        """Makes the gradient of the next block's source rows and sends it to their owner."""
        if self.one_shot:
            target = next(self.targets)
            if block is not self.made:
                self.of_block.write(target, block, rows)
        elif block is not self.made:
            self.of_block.write(self.returned.rows()[0], block, rows)
            self.returned.send()

    def finish(self) -> Tensor:
        """The gradient ``[num_own, ...]``, once all blocks have been added."""
        if not self.one_shot:
            return self.returned.finish()[0]
        self.exchange.return_all([self.halo], [self.out])
        return self.out
