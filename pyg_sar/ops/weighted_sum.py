"""Sums of ``w_e * x_j`` over in-edges: attention once its weights are known, GCN, GraphSAGE.

Backward fetches no rows: the gradient of a block's source rows is the transposed sum of the output
gradient, which the destination's rank holds. Only a weight that learns needs the rows again: its
gradient is their product with the output gradient, in the same pass over the blocks.

A mean is divided inside the transposed sum, by weights of 1 / in-degree, which spares a pass. With
one part per rank the gradients of halo rows are sent first, and the own block is computed while
they travel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.send_recv import TensorList
from pyg_sar.ops.block_loop import AllAtOnce, BlockByBlock, BlockLoop, Later
from pyg_sar.ops.spmm import add_segment_sums, edge_dots, segment_sums, weighted_sums_and_dots
from pyg_sar.shard.blocks import Block, Plan
from pyg_sar.utils.offload import is_read_by_rows, selected_rows


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

    From own rows x ``[num_own, H, C]``, floating point, and weights ``[num_edges, H]`` of the edges
    of `plan`, of the same dtype, to sums ``[num_dst, H, C]``. Without heads x and out are
    ``[..., F]``, and the weight is ``[num_edges]`` and taken for a constant, or None for ones.

    | forward:  receive the rows of block q; ``out[:, h] += A_qh @ rows_q[:, h]``
    | backward: ``grad_rows_q[:, h] = A_qh^T @ grad_out[:, h]``; send them to q; if the weight needs
      a gradient receive the rows again; ``grad_weight[e, h] = <grad_out[i, h], rows_q[j, h]>``

    Saved for backward: x if the weight needs a gradient, the weight if x does. No tensor of
    ``[num_edges, H, C]`` is made. Point-to-point messages: one per step in forward; in backward one
    per step if the weight needs a gradient, and one if x does (with `one_shot` one all-to-all in
    forward, and one in backward if x needs a gradient).

    `keep_rows` keeps the rows that were received; `one_shot` exchanges all halo rows at once, which
    are kept if backward asks for them; `mean` divides by the number of in-edges, without heads.
    """
    if weight is not None and weight.dim() == 1:
        weight = weight.detach()
    # Nothing is kept where backward would not ask for it.
    learns = torch.is_grad_enabled() and weight is not None and weight.requires_grad
    kept: list[Tensor] | None = [] if learns and (keep_rows or one_shot) else None
    loop = (AllAtOnce if one_shot else BlockByBlock)(plan, exchange, kept)
    out: Tensor = _WeightedSum.apply(x.contiguous(), weight, loop, mean)
    return out


@communicates
class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, loop: BlockLoop, mean: bool) -> Tensor:
        out: Tensor | None = None
        for block, (rows,) in loop.all_gather_halo([x]):
            if block.num_edges == 0:
                continue
            block_weight = None if weight is None else block.span(weight)
            if out is None:
                out = segment_sums(rows, block.by_dst, block_weight)
            else:
                add_segment_sums(out, rows, block.by_dst, block_weight)
        if out is None:
            out = x.new_zeros(loop.plan.shard.num_dst, *x.shape[1:])
        ctx.loop, ctx.mean = replace(loop, kept=None), mean
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(
            x if needs_weight else None, weight if needs_x else None, *(loop.kept or ())
        )
        return out.div_(_divisor(loop.plan, out).view(-1, 1)) if mean else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *kept = ctx.saved_tensors
        loop: BlockLoop = replace(ctx.loop, kept=kept or None)
        plan, grad = loop.plan, grads[0].contiguous()
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        gradients = _BlockGradients(
            grad,
            weight,
            _divisor(plan, grad).reciprocal() if ctx.mean else None,
            grad.new_empty(plan.num_edges, grad.size(1)) if needs_weight else None,
        )
        read = [x] if needs_weight else []
        if not needs_x:
            for block, rows in loop.all_gather_halo(read):
                gradients.write([], block, rows)
            return None, gradients.of_weight, None, None
        # With one part the own block's sum is the gradient itself, in one pass.
        is_one = plan.shard.parts_per_rank == 1
        out = [grad if is_one else grad.new_empty(plan.shard.num_own, *grad.shape[1:])]
        own = partial(gradients.of_rows, plan.blocks[0], read) if is_one else None
        later = None if read else Later([grad], gradients.write_later)
        for block, rows, targets in loop.reduce_scatter(read, out, own, later):
            gradients.write(targets, block, rows)
        return out[0], gradients.of_weight, None, None


def _divisor(plan: Plan, like: Tensor) -> Tensor:
    """What a sum over in-edges is divided by for their mean, ``[num_dst]``."""
    return plan.in_degree.clamp(min=1).to(like.dtype)


@dataclass(frozen=True, eq=False)
class _BlockGradients:
    """Makes the gradients of one block's source rows and of its edges' weights."""

    of_out: Tensor
    weight: Tensor | None
    factor: Tensor | None  # ``[num_dst]``: what rows of `of_out` are multiplied by
    of_weight: Tensor | None  # ``[num_edges, H]``, filled block by block

    def of_rows(self, block: Block, rows: TensorList) -> TensorList:
        """The gradient of a block's source rows; `rows` hold them if the weights need it."""
        if self.of_weight is None:
            weight = None if self.weight is None else block.span(self.weight)
            return [segment_sums(self.of_out, block.by_src, weight, factor=self.factor)]
        out = self.of_out.new_empty(block.num_rows, *self.of_out.shape[1:])
        self.write([out], block, rows)
        return [out]

    def write_later(self, block: Block, targets: TensorList) -> None:
        """As :meth:`write` where weights learn nothing, of rows of `of_out` that may be away."""
        if not is_read_by_rows(self.of_out) or (self.weight is not None and self.weight.dim() > 1):
            self.write(targets, block, [])
            return
        columns, segments = block.by_src_compacted
        grad = selected_rows(self.of_out, columns)
        factor = None if self.factor is None else self.factor.index_select(0, columns)
        weight = None if self.weight is None else block.span(self.weight)
        add_segment_sums(targets[0], grad, segments, weight, factor=factor, replace=True)

    def write(self, targets: TensorList, block: Block, rows: TensorList) -> None:
        """Writes the gradient of source rows to the target, if there is one."""
        weight = None if self.weight is None else block.span(self.weight)
        if self.of_weight is None or not block.num_edges:
            for out in targets:
                segments, factor = block.by_src, self.factor
                add_segment_sums(out, self.of_out, segments, weight, factor=factor, replace=True)
            return
        dots = block.span(self.of_weight)
        if not targets:
            edge_dots(dots, self.of_out, rows[0], block.by_dst)
            return
        assert weight is not None
        weighted_sums_and_dots(targets[0], dots, self.of_out, rows[0], block, weight)
