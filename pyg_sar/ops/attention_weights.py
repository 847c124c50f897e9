"""Weights of attention, ``softmax(leaky_relu(a_j + a_i))`` over in-edges, by compiled loops.

GATConv weights its messages so (Velickovic et al. 2018, arXiv 1710.10903), GATv2Conv by the scores
``<att, leaky_relu(a_j + a_i)>`` (Brody et al. 2022, arXiv 2105.14491). The general way computes
such a message operation by operation in chunks of edges, and again in backward. Here loops over the
edges compute the scores, their exponentials and sums, and in backward the gradients.
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
from pyg_sar.shard.csr import Segments
from pyg_sar.shard.index_rows import rows_at

_MOST_HEADS = 64
"""Loops are compiled for a number of heads, some seconds from here on."""


def have_loop(source: Tensor, own: Tensor, att: Tensor | None) -> bool:
    """Whether :func:`attention_weights` takes scores like these."""
    is_alike = source.dtype == own.dtype and source.shape[1:] == own.shape[1:]
    is_fit = att is None or (att.dtype == own.dtype and att.shape == own.shape[1:])
    has_few = _num_heads(own, att) <= _MOST_HEADS
    return is_alike and is_fit and has_few and has_loop(source)


def _num_heads(own: Tensor, att: Tensor | None) -> int:
    return prod(own.shape[1:]) if att is None else att.size(0)


def attention_weights(
    source: Tensor, own: Tensor, att: Tensor | None, slope: float, loop: BlockByBlock
) -> Tensor:
    """The softmax of ``leaky_relu(source[j] + own[i], slope)`` over the in-edges of every i.

    From ``[num_own, ...]`` at the sources and ``[num_dst, ...]`` at the destinations to weights
    ``[num_edges, ...]``; all float32 or float64, on a CPU. With `att` ``[H, C]`` scores are sums
    over channels, times `att`: from ``[num_own, H, C]`` and ``[num_dst, H, C]`` to
    ``[num_edges, H]``.

    | forward:  receive the rows of block q; scores of its edges, and the largest of every i; once
      all are in ``exp(score - largest_i) / sum_i``
    | backward: receive them again; ``d_score = w * (d_w - r_i)`` with ``r_i = sum of w * d_w``

    Saved for backward: all tensors and the weights. Point-to-point messages: one per step in
    forward; in backward one per step, and one if `source` needs a gradient.
    """
    tensors = source.contiguous(), own.contiguous(), None if att is None else att.contiguous()
    out: Tensor = _AttentionWeights.apply(*tensors, slope, loop)
    return out


@communicates
class _AttentionWeights(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: Tensor, own: Tensor, att: Tensor | None, slope: float, loop: BlockByBlock
    ) -> Tensor:
        blocks, shape = loop.plan.blocks, own.shape[1:] if att is None else own.shape[1:2]
        out = source.new_empty(loop.plan.num_edges, *shape)
        largest = own.new_full((own.size(0), *shape), float('-inf'))
        sums = torch.zeros_like(largest)
        heads = (0,) * _num_heads(own, att)  # of which a loop reads the length
        number = own.new_tensor(slope).numpy()[()]  # in their dtype

        def run(block: Block, rows: Tensor, *steps: int) -> None:
            written, ends = [block.span(out), largest, sums], (number, *steps)
            run_on_edges('attention_weights', block.by_dst, written, (rows, own), heads, ends=ends)

        # An only block holds all in-edges of its destinations.
        is_one = len(blocks) == 1
        for block, (rows,) in loop.all_gather_halo([source]):
            if att is None:
                run(block, rows, 0, 2 if is_one else 0)
                continue
            written, read = [block.span(out), largest], (rows, own, att)
            run_on_edges('leaky_dots', block.by_dst, written, read, *att.shape, ends=(number,))
        if att is not None and is_one:
            run(blocks[0], own[:0], 1, 2)
        for step in () if is_one else (1, 2):
            for block in blocks:
                run(block, own[:0], step, step)
        ctx.save_for_backward(source, own, att, out, *(loop.kept or ()))
        ctx.loop, ctx.slope = replace(loop, kept=None), number
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        source, own, att, weights, *kept = ctx.saved_tensors
        loop, grad = replace(ctx.loop, kept=kept or None), grads[0].contiguous()
        blocks, needs = loop.plan.blocks, ctx.needs_input_grad
        row_sum = weights.new_zeros(own.size(0), *weights.shape[1:])
        of_own = torch.zeros_like(own) if needs[1] else None
        of_att = torch.zeros_like(att) if needs[2] else None
        heads = (0,) * _num_heads(own, att)

        def run(block: Block, rows: Tensor, of_rows: Tensor | None, *steps: int) -> None:
            read = block.span(weights), block.span(grad), rows, own
            run_on_edges(
                *('gradients_of_scores', block.by_dst, [of_rows, row_sum, of_own], read, heads),
                ends=(ctx.slope, *steps),
                adds=True,
            )

        def of_dots(segments: Segments, written: list[Tensor | None], read: Any) -> None:
            name, widths, ends = 'gradients_of_leaky_dots', att.shape, (ctx.slope,)
            run_on_edges(name, segments, written, read, *widths, ends=ends, adds=True)

        is_fused = len(blocks) == 1 and att is None
        for block in () if is_fused else blocks:
            run(block, own[:0], None, 0, 0)
        if att is not None:
            grad = weights * (grad - rows_at(row_sum, loop.plan.edge_index[1]))
        of_source = [torch.empty_like(source)] if needs[0] else []
        for block, (rows,), targets in loop.reduce_scatter([source], of_source):
            target = targets[0].zero_() if targets else None
            if att is None:
                run(block, rows, target, 0 if is_fused else 1, 1)
                continue
            if needs[1] or needs[2]:
                of_dots(block.by_dst, [of_att, of_own], (block.span(grad), rows, own, att))
            if target is not None:
                of_dots(block.by_src, [None, target], (block.span(grad), own, rows, att))
        return of_source[0] if of_source else None, of_own, of_att, None, None
