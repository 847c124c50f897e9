"""Backward of the replay path: makes messages again, chunk by chunk, with autograd."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.blocks import Blocks, Chunk
from pyg_sar.aggregate.program import Arguments, Program, Reduction, SoftmaxFn
from pyg_sar.comm import GradientReturn
from pyg_sar.merge import SoftmaxStats, State


class ChunkGradient:
    """Runs the function on a chunk with autograd and takes gradients of what it computed."""

    def __init__(
        self,
        program: Program,
        states: Sequence[State],
        grads: Sequence[Tensor | None],
    ) -> None:
        self.program = program
        rest = iter(grads)
        self.reductions: list[tuple[Reduction, State, Tensor | None]] = []
        for reduction, state in zip(program.reductions, states, strict=True):
            # The first tensor of a state takes a gradient.
            grad, *_ = islice(rest, reduction.merge.num_tensors)
            self.reductions.append((reduction, state, grad))
        self.grad_edge_outputs = list(rest)

    def __call__(
        self, chunk: Chunk, arguments: Arguments, softmax: SoftmaxFn
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The chunk's outputs that need a gradient, and their gradients."""
        with torch.enable_grad():
            messages, edge_outputs = self.program.run(arguments, chunk.edge_index, softmax)
        outputs, gradients = [], []
        for place, message in enumerate(messages):
            if not message.requires_grad:
                continue
            parts = [
                r.merge.grad(
                    chunk.at_rows(grad, r.dim),
                    tuple(chunk.at_rows(t, r.dim) for t in state),
                    message.detach(),
                    chunk.dst,
                    r.dim,
                )
                for r, state, grad in self.reductions
                if r.message == place and grad is not None
            ]
            if parts:
                outputs.append(message)
                gradients.append(sum(parts[1:], start=parts[0]))
        for output, grad in zip(edge_outputs, self.grad_edge_outputs, strict=True):
            if grad is not None and output.requires_grad:
                outputs.append(output)
                gradients.append(chunk.take(grad))
        return outputs, gradients


def softmax_row_sum(
    run: ChunkGradient,
    blocks: Blocks,
    stats: Sequence[SoftmaxStats],
    sums: Sequence[Tensor | None],
    k: int,
) -> Tensor | None:
    """``r_i = sum over in-edges of alpha * d_alpha`` of softmax k; later ones are known."""
    known = stats[k].sum
    if known is None:
        for _ in blocks.chunks():  # no edge here, but the other ranks need our rows
            pass
        return None
    total = torch.zeros_like(known)
    for chunk, arguments in blocks.chunks():
        terms = _row_terms(run, chunk, arguments, stats, sums, k)
        if terms is not None:
            total[chunk.rows].index_add_(0, chunk.dst, terms)
        del arguments  # not while those of the next chunk are made
    return total


def _row_terms(
    run: ChunkGradient,
    chunk: Chunk,
    arguments: Arguments,
    stats: Sequence[SoftmaxStats],
    sums: Sequence[Tensor | None],
    k: int,
) -> Tensor | None:
    """``alpha * d_alpha`` of every edge, or None if nothing depends on alpha."""
    leaves: list[Tensor] = []
    calls = iter(range(len(stats)))

    def softmax(logits: Tensor, dst: Tensor) -> Tensor:
        call = next(calls)
        if call > k:
            return _softmax_of_chunk(logits, dst, stats[call], sums[call], chunk.rows)
        alpha = stats[call].alpha(logits.detach(), dst, chunk.rows)
        if call < k:
            return alpha
        leaves.append(alpha.requires_grad_())
        return alpha.clone()

    outputs, gradients = run(chunk, arguments, softmax)
    if not leaves or not outputs:
        return None
    (d_alpha,) = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
    return None if d_alpha is None else leaves[0].detach() * d_alpha


def replay_gradients(
    run: ChunkGradient,
    blocks: Blocks,
    stats: Sequence[SoftmaxStats],
    sums: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of all arguments that need one, in their order."""
    arguments = blocks.arguments
    num_src = len(arguments.src)
    total = [
        torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
        for t, need in zip(arguments, needs, strict=True)
    ]
    targets = list(total)
    needs_src = [i for i in range(num_src) if needs[i]]
    returned = GradientReturn(blocks.exchange, [t for t in total[:num_src] if t is not None])
    for chunks in blocks:
        if needs_src:
            for i, rows in zip(needs_src, returned.rows(), strict=True):
                targets[i] = rows.zero_()
        for chunk, chunk_arguments in chunks:
            _add_gradients(targets, run, chunk, chunk_arguments.as_leaves(needs), stats, sums)
            del chunk_arguments  # not while those of the next chunk are made
        if needs_src:
            returned.send()
    returned.finish()
    return total


def _add_gradients(
    targets: Sequence[Tensor | None],
    run: ChunkGradient,
    chunk: Chunk,
    leaves: Arguments,
    stats: Sequence[SoftmaxStats],
    sums: Sequence[Tensor | None],
) -> None:
    """Adds a chunk's gradients: of source rows to those of the block, of others to all of them."""
    calls = iter(range(len(stats)))

    def softmax(logits: Tensor, dst: Tensor) -> Tensor:
        k = next(calls)
        return _softmax_of_chunk(logits, dst, stats[k], sums[k], chunk.rows)

    outputs, gradients = run(chunk, leaves, softmax)
    num_src, num_dst, num_edge, _, _ = leaves.counts
    tensors = list(leaves)
    wanted = [i for i, target in enumerate(targets) if target is not None]
    if not outputs or not wanted:
        return
    results = torch.autograd.grad(
        outputs, [tensors[i] for i in wanted], gradients, allow_unused=True
    )
    for i, gradient in zip(wanted, results, strict=True):
        target = targets[i]
        if gradient is None or target is None:
            continue
        if i < num_src:
            target.index_add_(0, chunk.src, gradient)
        elif i < num_src + num_dst:
            chunk.at_rows(target).index_add_(0, chunk.dst, gradient)
        elif i < num_src + num_dst + num_edge:
            chunk.put(target, gradient)
        else:
            target += gradient


class _SoftmaxOfChunk(torch.autograd.Function):
    """A chunk's share of a softmax whose statistics are known.

    | forward:  ``alpha = exp(l - max_i) / (sum_i + 1e-16)``
    | backward: ``d_l = alpha * (d_alpha - r_i)``
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, dst: Tensor, stats: SoftmaxStats, row_sum: Tensor, rows: slice
    ) -> Tensor:
        alpha = stats.alpha(logits, dst, rows)
        ctx.save_for_backward(alpha, dst, row_sum[rows])
        return alpha

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        alpha, dst, row_sum = ctx.saved_tensors
        return alpha * (grads[0] - row_sum.index_select(0, dst)), None, None, None, None


def _softmax_of_chunk(
    logits: Tensor, dst: Tensor, stats: SoftmaxStats, row_sum: Tensor | None, rows: slice
) -> Tensor:
    out: Tensor = _SoftmaxOfChunk.apply(  # type: ignore[no-untyped-call]
        logits, dst, stats, row_sum, rows
    )
    return out
