"""The replay path: any message function, block by block, recomputed in backward.

Forward runs the function on one block after another without autograd and keeps only the merge
state. Backward fetches every block's rows again, runs the function with autograd on, takes the
gradient of that block alone with ``torch.autograd.grad``, sends the rows' gradient to their owner
and drops everything. (``.backward()`` would accumulate into parameters behind the caller's back.)

A softmax over in-edges spans blocks. With k softmaxes forward makes k passes that stop at the
softmax and keep its running maximum and sum, then one that uses them. In backward the gradient of
the logits is ``alpha * (d_alpha - r_i)`` with ``r_i = sum over in-edges of alpha * d_alpha``: again
one pass per softmax, the last one first, and then the one that takes all gradients. This is exact
for any use of softmax, nested ones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyg_sar.aggregate.program import (
    Arguments,
    Program,
    SoftmaxFn,
    Surroundings,
    finished_softmax,
    logits_of,
)
from pyg_sar.comm import Exchange, GradientReturn, Rows
from pyg_sar.merge import Merge, SoftmaxStats
from pyg_sar.shard.plan import Block, Plan


def replay(
    program: Program,
    arguments: Arguments,
    merges: Sequence[Merge],
    plan: Plan,
    exchange: Exchange,
    *,
    keep_rows: bool = False,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Runs a message function over all blocks and merges its messages.

    ============  ======================  ===================================================
    tensor        shape                   meaning
    ============  ======================  ===================================================
    src, dst      ``[num_own, ...]``      own rows, read at an edge's source / destination
    edge          ``[num_edges, ...]``    one row per edge of `plan`
    whole         any                     read as they are
    learnable     any                     leaf tensors the function reads by itself
    states        ``[num_own, ...]``      one finished merge state for each of `merges`
    edge outputs  ``[num_edges, ...]``    what the function computes per edge
    ============  ======================  ===================================================

    Saved for backward: the arguments and, per softmax, maximum and sum; never halo rows or messages
    (with `keep_rows` the rows received, so that backward need not fetch them again).

    Communication: ``1 + num_softmax`` exchanges in forward; as many in backward, and one exchange
    of gradients if a source tensor needs one.

    Returns:
        The merge states and the edge outputs.
    """
    out = _Replay.apply(  # type: ignore[no-untyped-call]
        program, tuple(merges), plan, exchange, keep_rows, arguments.counts, *arguments
    )
    num_states = len(out) - program.num_edge_outputs
    return out[:num_states], out[num_states:]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        program: Program,
        merges: tuple[Merge, ...],
        plan: Plan,
        exchange: Exchange,
        keep_rows: bool,
        counts: tuple[int, ...],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        surroundings = Surroundings(program.uses_rng, plan.edge_index.device)
        kept: list[Rows] | None = [] if keep_rows else None
        blocks = _Blocks(Arguments.of(counts, tensors), plan, exchange, surroundings, kept)
        stats: list[SoftmaxStats] = []
        for _ in range(program.num_softmax):
            stats.append(_softmax_stats(program, blocks, stats))
        outputs = _merge_blocks(program, merges, blocks, stats)

        ctx.program, ctx.merges, ctx.plan, ctx.exchange = program, merges, plan, exchange
        ctx.counts, ctx.surroundings = counts, surroundings
        ctx.has_stats = [s.max is not None for s in stats]
        ctx.keep_rows = keep_rows
        ctx.save_for_backward(
            *tensors,
            *(t for s in stats for t in (s.max, s.sum) if t is not None),
            *(t for rows in kept or () for t in rows),
        )
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in outputs if not o.is_floating_point()))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        num_arguments = sum(ctx.counts)
        arguments = Arguments.of(ctx.counts, saved[:num_arguments])
        rest = iter(saved[num_arguments:])
        num_own = ctx.plan.shard.num_own
        stats = [
            SoftmaxStats(num_own, next(rest), next(rest)) if has else SoftmaxStats(num_own)
            for has in ctx.has_stats
        ]
        kept = None
        if ctx.keep_rows:
            kept = [[next(rest) for _ in arguments.src] for _ in ctx.plan.blocks]
        blocks = _Blocks(arguments, ctx.plan, ctx.exchange, ctx.surroundings, kept)
        run = _BlockGradient(ctx.program, ctx.merges, grads)
        with ctx.surroundings.replay(), ctx.surroundings.autocast():
            sums: list[Tensor | None] = [None] * len(stats)
            for k in reversed(range(len(stats))):
                sums[k] = _softmax_row_sum(run, blocks, stats, sums, k)
            gradients = _gradients(run, blocks, stats, sums, ctx.needs_input_grad[6:])
        return None, None, None, None, None, None, *gradients


class _Blocks:
    """The blocks of a plan with the arguments the message function reads there.

    Args:
        kept: Rows of every block: filled by the first iteration when empty, then used instead of
            an exchange; None to fetch them in every iteration.
    """

    def __init__(
        self,
        arguments: Arguments,
        plan: Plan,
        exchange: Exchange,
        surroundings: Surroundings,
        kept: list[Rows] | None,
    ) -> None:
        self.arguments = arguments
        self.plan = plan
        self.exchange = exchange
        self.surroundings = surroundings
        self.kept = kept

    def __iter__(self) -> Iterator[tuple[Block, Tensor, Arguments]]:
        """Yields every block, its edge_index and its arguments (source and edge rows)."""
        a = self.arguments
        for block, rows in zip(self.plan.blocks, self._rows(), strict=True):
            self.surroundings.enter_block(block)
            edge = tuple(block.take(t) for t in a.edge)
            yield block, block.edge_index, Arguments(tuple(rows), a.dst, edge, a.whole, a.learnable)

    def _rows(self) -> Iterator[Rows]:
        if self.kept:
            yield from self.kept
            return
        for rows in self.exchange.fetch(self.arguments.src, keep=self.kept is not None):
            if self.kept is not None:
                self.kept.append(rows)
            yield rows


def _softmax_stats(program: Program, blocks: _Blocks, done: Sequence[SoftmaxStats]) -> SoftmaxStats:
    """Maximum and sum of the first softmax that is not in `done`."""
    stats = SoftmaxStats(blocks.plan.shard.num_own)
    for block, edge_index, arguments in blocks:
        if block.num_edges:
            logits = logits_of(program, arguments, edge_index, done)
            if logits is not None:
                stats.step(logits, edge_index[1])
    return stats


def _merge_blocks(
    program: Program,
    merges: Sequence[Merge],
    blocks: _Blocks,
    stats: Sequence[SoftmaxStats],
) -> tuple[Tensor, ...]:
    """The forward pass: merge states, then edge outputs."""
    plan = blocks.plan
    states: list[Tensor] = []
    edge_outputs: list[Tensor] = []
    for block, edge_index, arguments in blocks:
        # The first own block is run in any case: it sets the shapes.
        is_first = block is plan.blocks[0]
        if not is_first and block.num_edges == 0:
            continue
        messages, outputs = program.run(arguments, edge_index, finished_softmax(stats))
        if is_first:
            edge_outputs = [t.new_zeros(plan.num_edges, *t.shape[1:]) for t in outputs]
            if messages is not None:
                num_own = plan.shard.num_own
                states = [m.init(messages, num_own, program.dim) for m in merges]
        for target, output in zip(edge_outputs, outputs, strict=True):
            block.put(target, output)
        if messages is not None:
            for merge, state in zip(merges, states, strict=True):
                merge.step(state, messages, edge_index[1], program.dim)
    return (*states, *edge_outputs)


class _BlockGradient:
    """Runs the function on a block with autograd and takes gradients of what it computed."""

    def __init__(
        self, program: Program, merges: Sequence[Merge], grads: Sequence[Tensor | None]
    ) -> None:
        self.program = program
        self.merges = merges
        num_states = len(grads) - program.num_edge_outputs
        self.grad_states = grads[:num_states]
        self.grad_edge_outputs = grads[num_states:]

    def __call__(
        self, block: Block, edge_index: Tensor, arguments: Arguments, softmax: SoftmaxFn
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The block's outputs that need a gradient, and their gradients."""
        with torch.enable_grad():
            messages, edge_outputs = self.program.run(arguments, edge_index, softmax)
        outputs, gradients = [], []
        if messages is not None and messages.requires_grad:
            dim = self.program.dim
            parts = [
                merge.grad(grad, messages.detach(), edge_index[1], dim)
                for merge, grad in zip(self.merges, self.grad_states, strict=True)
                if grad is not None
            ]
            if parts:
                outputs.append(messages)
                gradients.append(sum(parts[1:], start=parts[0]))
        for output, grad in zip(edge_outputs, self.grad_edge_outputs, strict=True):
            if grad is not None and output.requires_grad:
                outputs.append(output)
                gradients.append(block.take(grad))
        return outputs, gradients


def _softmax_row_sum(
    run: _BlockGradient,
    blocks: _Blocks,
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


def _gradients(
    run: _BlockGradient,
    blocks: _Blocks,
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
        leaves = _leaves(block_arguments, needs)
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


def _leaves(arguments: Arguments, needs: Sequence[bool]) -> Arguments:
    """Detached arguments that collect a gradient each; learnable tensors are leaves already."""
    tensors = list(arguments)
    num_detached = len(tensors) - len(arguments.learnable)
    leaves = [
        t.detach().requires_grad_(need)
        for t, need in zip(tensors[:num_detached], needs, strict=False)
    ]
    return Arguments.of(arguments.counts, leaves + tensors[num_detached:])


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
