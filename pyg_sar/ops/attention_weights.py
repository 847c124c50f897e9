"""Weights of attention, ``softmax(leaky_relu(a_j + a_i))`` over in-edges, by compiled loops.

GATConv weights its messages so (Velickovic et al. 2018, arXiv 1710.10903). The general way computes
such a message operation by operation in chunks of edges, and again in backward. Here loops over the
edges compute the scores, their exponentials and sums, and in backward both gradients at once.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable
from pyg_sar.ops.block_loop import BlockByBlock
from pyg_sar.ops.weighted_loops import has_loop, run_on_edges
from pyg_sar.shard.blocks import Block


def have_loop(source: Tensor, own: Tensor) -> bool:
    """Whether :func:`attention_weights` takes scores like these."""
    is_alike = source.dtype == own.dtype and source.shape[1:] == own.shape[1:]
    return is_alike and has_loop(source)


def attention_weights(source: Tensor, own: Tensor, slope: float, loop: BlockByBlock) -> Tensor:
    """The softmax of ``leaky_relu(source[j] + own[i], slope)`` over the in-edges of every i.

    From ``[num_own, ...]`` at the sources and ``[num_dst, ...]`` at the destinations to weights
    ``[num_edges, ...]``; all float32 or all float64, on a CPU.

    | forward:  receive the rows of block q; scores of its edges, and the largest of every i; once
      all are in ``exp(score - largest_i) / sum_i``
    | backward: receive them again; ``d_score = w * (d_w - r_i)`` with ``r_i = sum of w * d_w``

    Saved for backward: both tensors and the weights. Point-to-point messages: one per step in
    forward; in backward one per step, and one if `source` needs a gradient.
    """
    out: Tensor = _AttentionWeights.apply(source.contiguous(), own.contiguous(), slope, loop)
    return out


@communicates
class _AttentionWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, own: Tensor, slope: float, loop: BlockByBlock) -> Tensor:
        blocks = loop.plan.blocks
        out = source.new_empty(loop.plan.num_edges, *source.shape[1:])
        largest, sums = torch.full_like(own, float('-inf')), torch.zeros_like(own)
        heads, number = prod(own.shape[1:]), own.new_tensor(slope).numpy()[()]  # in their dtype

        def run(block: Block, rows: Tensor, *steps: int) -> None:
            written, ends = [block.span(out), largest, sums], (number, *steps)
            run_on_edges('attention_weights', block.by_dst, written, (rows, own), heads, ends=ends)

        # An only block holds all in-edges of its destinations.
        is_one = len(blocks) == 1
        for block, (rows,) in loop.all_gather_halo([source]):
            run(block, rows, 0, 2 if is_one else 0)
        for step in () if is_one else (1, 2):
            for block in blocks:
                run(block, own[:0], step, step)
        ctx.save_for_backward(source, own, out, *(loop.kept or ()))
        ctx.loop, ctx.slope = replace(loop, kept=None), number
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        source, own, weights, *kept = ctx.saved_tensors
        loop, grad = replace(ctx.loop, kept=kept or None), grads[0].contiguous()
        needs_source, needs_own = ctx.needs_input_grad[:2]
        row_sum, of_own = torch.zeros_like(own), torch.zeros_like(own) if needs_own else None
        heads = prod(own.shape[1:])

        def run(block: Block, rows: Tensor, of_rows: Tensor | None, *steps: int) -> None:
            read = block.span(weights), block.span(grad), rows, own
            run_on_edges(
                *('gradients_of_scores', block.by_dst, [of_rows, row_sum, of_own], read, heads),
                ends=(ctx.slope, *steps),
                adds=True,
            )

        is_one = len(loop.plan.blocks) == 1
        for block in () if is_one else loop.plan.blocks:
            run(block, own[:0], None, 0, 0)
        of_source = [torch.empty_like(source)] if needs_source else []
        for block, (rows,), targets in loop.reduce_scatter([source], of_source):
            target = targets[0].zero_() if targets else None
            run(block, rows, target, 0 if is_one else 1, 1)
        return of_source[0] if of_source else None, of_own, None, None
