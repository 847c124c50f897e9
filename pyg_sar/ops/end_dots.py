"""Dots of rows at both ends of every edge: the scores of attention by queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable
from pyg_sar.ops.block_loop import BlockByBlock
from pyg_sar.ops.spmm import add_weighted_sums, edge_dots


def end_dots(source: Tensor, own: Tensor, loop: BlockByBlock) -> Tensor:
    """``out[e, h] = <source[j, h], own[i, h]>`` of all edges e: j -> i, remote ones included.

    From ``[num_own, H, C]`` and ``[num_dst, H, C]`` of one floating dtype to ``[num_edges, H]``.

    | forward:  receive the rows of block q; dots of its edges
    | backward: receive them again; ``grad_own[i, h] += grad[e, h] * rows_q[j, h]``;
      ``grad_rows_q[j, h] += grad[e, h] * own[i, h]``; send them to q

    Saved for backward: both tensors. Point-to-point messages: one per step in forward; in backward
    one per step if `own` needs a gradient, and one if `source` does.
    """
    out: Tensor = _EndDots.apply(source.contiguous(), own.contiguous(), loop)
    return out


@communicates
class _EndDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, own: Tensor, loop: BlockByBlock) -> Tensor:
        out = source.new_empty(loop.plan.num_edges, own.size(1))
        for block, (rows,) in loop.all_gather_halo([source]):
            if block.num_edges:
                edge_dots(block.span(out), own, rows, block.by_dst)
        needs_source, needs_own = ctx.needs_input_grad[:2]
        ctx.save_for_backward(
            source if needs_own else None, own if needs_source else None, *(loop.kept or ())
        )
        ctx.loop = replace(loop, kept=None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        source, own, *kept = ctx.saved_tensors
        loop, grad = replace(ctx.loop, kept=kept or None), grads[0].contiguous()
        shard, row_shape = loop.plan.shard, (source if own is None else own).shape[1:]
        of_own = None if source is None else grad.new_zeros(shard.num_dst, *row_shape)
        of_source = [] if own is None else [grad.new_empty(shard.num_own, *row_shape)]
        read = [] if source is None else [source]
        for block, rows, targets in loop.reduce_scatter(read, of_source):
            weight = block.span(grad)
            if of_own is not None and block.num_edges:
                add_weighted_sums(of_own, rows[0], block.by_dst, weight)
            for target in targets:
                add_weighted_sums(target, own, block.by_src, weight, replace=True)
        return of_source[0] if of_source else None, of_own, None
