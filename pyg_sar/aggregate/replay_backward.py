"""The backward pass of the replay path: each block's messages anew, with autograd, and dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.blocks import Blocks
from pyg_sar.aggregate.program import Arguments, Program, Reduction, SoftmaxFn
from pyg_sar.comm import GradientReturn
from pyg_sar.merge import SoftmaxStats, State
from pyg_sar.shard.plan import Block


class BlockGradient:
    """Runs the function on a block with autograd and takes gradients of what it computed."""

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
        self, block: Block, edge_index: Tensor, arguments: Arguments, softmax: SoftmaxFn
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The block's outputs that need a gradient, and their gradients."""
        with torch.enable_grad():
            messages, edge_outputs = self.program.run(arguments, edge_index, softmax)
        outputs, gradients = [], []
        for place, message in enumerate(messages):
            if not message.requires_grad:
                continue
            parts = [
                r.merge.grad(grad, state, message.detach(), edge_index[1], r.dim)
                for r, state, grad in self.reductions
                if r.message == place and grad is not None
            ]
            if parts:
                outputs.append(message)
                gradients.append(sum(parts[1:], start=parts[0]))
        for output, grad in zip(edge_outputs, self.grad_edge_outputs, strict=True):
            if grad is not None and output.requires_grad:
                outputs.append(output)
                gradients.append(block.take(grad))
        return outputs, gradients


def softmax_row_sum(
    run: BlockGradient,
    blocks: Blocks,
    stats: Sequence[SoftmaxStats],
    sums: Sequence[Tensor | None],
    k: int,
) -> Tensor | None:
    """``r_i = sum over in-edges of alpha * d_alpha`` of softmax k; later ones are known."""
    known = stats[k].sum
    if known is None:
        for _ in blocks:  # no edge here, but the other ranks need our rows
            pass
        return None
    total = torch.zeros_like(known)
    for block, edge_index, arguments in blocks:
        if block.num_edges == 0:
            continue
        leaves: list[tuple[Tensor, Tensor]] = []
        calls = iter(range(len(stats)))

        def softmax(
            logits: Tensor,
            dst: Tensor,
            calls: Iterator[int] = calls,
            leaves: list[tuple[Tensor, Tensor]] = leaves,
        ) -> Tensor:
            call = next(calls)
            if call > k:
                return _softmax_of_block(logits, dst, stats[call], sums[call])
            alpha = stats[call].alpha(logits.detach(), dst)
            if call < k:
                return alpha
            leaves.append((alpha.requires_grad_(), dst))
            return alpha.clone()

        outputs, gradients = run(block, edge_index, arguments, softmax)
        if not leaves or not outputs:
            continue
        (alpha, dst) = leaves[0]
        (d_alpha,) = torch.autograd.grad(outputs, [alpha], gradients, allow_unused=True)
        if d_alpha is not None:
            total.index_add_(0, dst, alpha.detach() * d_alpha)
    return total


def replay_gradients(
    run: BlockGradient,
    blocks: Blocks,
    stats: Sequence[SoftmaxStats],
    sums: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of all arguments that need one, in their order."""
    arguments = blocks.arguments
    num_src, num_dst, num_edge = arguments.counts[:3]
    total = [
        torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
        for t, need in zip(arguments, needs, strict=True)
    ]
    returned = GradientReturn(blocks.exchange, [t for t in total[:num_src] if t is not None])
    for block, edge_index, block_arguments in blocks:
        leaves = block_arguments.as_leaves(needs)
        found: list[Tensor | None] = [None] * len(total)
        if block.num_edges:
            calls = iter(range(len(stats)))

            def softmax(logits: Tensor, dst: Tensor, calls: Iterator[int] = calls) -> Tensor:
                k = next(calls)
                return _softmax_of_block(logits, dst, stats[k], sums[k])

            outputs, gradients = run(block, edge_index, leaves, softmax)
            wanted = [(i, t) for i, t in enumerate(leaves) if needs[i]]
            if outputs and wanted:
                results = torch.autograd.grad(
                    outputs, [t for _, t in wanted], gradients, allow_unused=True
                )
                for (i, _), gradient in zip(wanted, results, strict=True):
                    found[i] = gradient
            del outputs, gradients
        if returned.out:
            returned.put(
                [
                    torch.zeros_like(leaf) if gradient is None else gradient
                    for leaf, gradient, need in zip(leaves.src, found, needs, strict=False)
                    if need
                ]
            )
        for i in range(num_src, len(total)):
            result, target = found[i], total[i]
            if result is None or target is None:
                continue
            if num_src + num_dst <= i < num_src + num_dst + num_edge:
                block.put(target, result)
            else:
                target += result
    returned.finish()
    return total


class _SoftmaxOfBlock(torch.autograd.Function):
    """A block's share of a softmax whose statistics are known.

    | forward:  ``alpha = exp(l - max_i) / (sum_i + 1e-16)``
    | backward: ``d_l = alpha * (d_alpha - r_i)``
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, dst: Tensor, stats: SoftmaxStats, row_sum: Tensor
    ) -> Tensor:
        alpha = stats.alpha(logits, dst)
        ctx.save_for_backward(alpha, dst, row_sum)
        return alpha

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        alpha, dst, row_sum = ctx.saved_tensors
        return alpha * (grads[0] - row_sum.index_select(0, dst)), None, None, None


def _softmax_of_block(
    logits: Tensor, dst: Tensor, stats: SoftmaxStats, row_sum: Tensor | None
) -> Tensor:
    out: Tensor = _SoftmaxOfBlock.apply(  # type: ignore[no-untyped-call]
        logits, dst, stats, row_sum
    )
    return out
