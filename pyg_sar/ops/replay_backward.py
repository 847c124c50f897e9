"""Backward of the replay path: recomputes messages, chunk by chunk, with autograd."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.functions import torch_apply
from pyg_sar.ops.chunks import Chunk
from pyg_sar.ops.program import Arguments, MessageReduction, SoftmaxFn, gradients_of
from pyg_sar.ops.reductions import SoftmaxStats, State
from pyg_sar.ops.run import Run
from pyg_sar.shard.index_rows import add_rows_at, add_runs_at, rows_at


class ReplayBackward:
    """Runs the function on one chunk after another with autograd and takes the chunk's gradients.

    `states` are the finished states of the reductions, as far as their gradients read them, and
    `grads` the gradients of the tensors of all states and of the edge outputs. `row_sums` are
    ``r_i = sum over in-edges of alpha * d_alpha`` of every softmax, once it is computed.
    """

    def __init__(
        self,
        run: Run,
        states: Sequence[State],
        grads: Sequence[Tensor | None],
        stats: Sequence[SoftmaxStats],
    ) -> None:
        self.run, self.stats = run, stats
        self.row_sums: list[Tensor | None] = [None] * len(stats)
        rest = iter(grads)
        self.reductions: list[tuple[MessageReduction, State, Tensor | None]] = []
        for reduction, state in zip(run.program.reductions, states, strict=True):
            # The first tensor of a state takes a gradient.
            grad, *_ = islice(rest, reduction.merge.num_tensors)
            self.reductions.append((reduction, state, grad))
        self.grad_edge_outputs = list(rest)

    def find_row_sum(self, k: int) -> None:
        """One pass for the row sum of softmax k, after those of later softmaxes."""
        divisor = self.stats[k].sum
        total = None if divisor is None else torch.zeros_like(divisor)
        # Also without an edge here: the other ranks need our rows.
        for chunk, edge_index, arguments in self.run.chunks():
            terms = self._row_terms(chunk, edge_index, arguments, k)
            if total is not None and terms is not None:
                add_rows_at(total[chunk.rows], edge_index[1], terms)
            del arguments  # freed before the next chunk allocates
        self.row_sums[k] = total

    def gradients(self, needs: Sequence[bool]) -> list[Tensor | None]:
        """One pass for the gradients of all arguments that need one, in their order."""
        total = self.run.arguments.zeros(needs, but_src=True)
        targets = list(total)
        num_src = len(self.run.arguments.src)
        needs_src = [i for i in range(num_src) if needs[i]]
        for of_src, chunks in self.run.give_back([t for t in total[:num_src] if t is not None]):
            for i, rows in zip(needs_src, of_src, strict=True):
                targets[i] = rows.zero_()  # block by block, so all own rows, too
            for chunk, edge_index, arguments in chunks:
                leaves = arguments.as_leaves(needs)
                outputs, grads = self._outputs(chunk, edge_index, leaves, self._softmax(chunk.rows))
                gradients = gradients_of(outputs, grads, leaves, needs)
                _add(targets, gradients, leaves.counts, chunk, edge_index)
                # Freed before the next chunk allocates.
                del arguments, leaves, outputs, grads, gradients
        return total

    def _outputs(
        self, chunk: Chunk, edge_index: Tensor, arguments: Arguments, softmax: SoftmaxFn
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The chunk's outputs that need a gradient, and their gradients."""
        with torch.enable_grad():
            messages, edge_outputs = self.run.program.run(arguments, edge_index, softmax)
        outputs, gradients = [], []
        for number, message in enumerate(messages):
            if not message.requires_grad:
                continue
            parts = [
                r.merge.grad(
                    chunk.at_rows(grad, r.dim),
                    tuple(chunk.at_rows(t, r.dim) for t in state),
                    message.detach(),
                    edge_index[1],
                    r.dim,
                )
                for r, state, grad in self.reductions
                if r.message == number and grad is not None
            ]
            if parts:
                outputs.append(message)
                gradients.append(sum(parts[1:], start=parts[0]))
        for output, grad in zip(edge_outputs, self.grad_edge_outputs, strict=True):
            if grad is not None and output.requires_grad:
                outputs.append(output)
                gradients.append(chunk.block.take(grad))
        return outputs, gradients

    def _row_terms(
        self, chunk: Chunk, edge_index: Tensor, arguments: Arguments, k: int
    ) -> Tensor | None:
        """``alpha * d_alpha`` of every edge, or None if nothing depends on alpha."""
        leaves: list[Tensor] = []
        softmax = self._softmax(chunk.rows, k, leaves)
        outputs, gradients = self._outputs(chunk, edge_index, arguments, softmax)
        if not leaves or not outputs:
            return None
        (d_alpha,) = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
        return None if d_alpha is None else leaves[0].detach() * d_alpha

    def _softmax(self, rows: slice, k: int = -1, leaves: list[Tensor] | None = None) -> SoftmaxFn:
        """The softmaxes in the order of their calls.

        Those before k are constants, alpha of k is put into `leaves`, and gradients go through the
        later ones: all of them without k.
        """
        calls = iter(range(len(self.stats)))

        def softmax(logits: Tensor, dst: Tensor) -> Tensor:
            call = next(calls)
            stats, row_sum = self.stats[call], self.row_sums[call]
            if call > k:
                out: Tensor = _Softmax.apply(logits, dst, stats, row_sum, rows)
                return out
            alpha = stats.alpha(logits.detach(), dst, rows)
            if call < k or leaves is None:
                return alpha
            leaves.append(alpha.requires_grad_())
            return alpha.clone()

        return softmax


def _add(
    targets: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    counts: Sequence[int],
    chunk: Chunk,
    edge_index: Tensor,
) -> None:
    """Adds a chunk's gradients: of source rows to those of the block, of others to all of them."""
    num_src, num_dst, num_edge = counts[:3]
    src, dst = edge_index
    for i, (target, gradient) in enumerate(zip(targets, gradients, strict=True)):
        if gradient is None or target is None:
            continue
        if i < num_src:
            add_rows_at(target, src, gradient)
        elif i < num_src + num_dst:
            add_runs_at(target[chunk.rows], dst, gradient)
        elif i < num_src + num_dst + num_edge:
            chunk.block.put(target, gradient)
        else:
            target += gradient


class _Softmax(torch.autograd.Function):
    """A chunk's share of a softmax whose statistics are known.

    | forward:  ``alpha = exp(l - max_i) / sum_i``
    | backward: ``d_l = alpha * (d_alpha - r_i)``
    """

    apply = torch_apply

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
        return alpha * (grads[0] - rows_at(row_sum, dst)), None, None, None, None
