"""The replay path: any message function, chunk by chunk of a block, recomputed in backward.

Forward runs the function without autograd and keeps only the merge state. Backward runs it again
with autograd and takes the gradient of a chunk alone with ``torch.autograd.grad`` (``.backward()``
would accumulate into parameters behind the caller's back).

A softmax over in-edges spans blocks. With k softmaxes forward makes k passes that stop at the
softmax and keep its running maximum and sum, then one that uses them. In backward the gradient of
the logits is ``alpha * (d_alpha - r_i)`` with ``r_i = sum over in-edges of alpha * d_alpha``: again
one pass per softmax, the last one first, and then the one that takes all gradients. This is exact
for nested softmaxes, too; :mod:`pyg_sar.ops.online_softmax` needs one pass for most convs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.functions import communicates, once_differentiable
from pyg_sar.ops.program import SoftmaxFn, no_autocast_cache
from pyg_sar.ops.reductions import SoftmaxStats, State
from pyg_sar.ops.replay_backward import ReplayBackward
from pyg_sar.ops.run import Run


def replay(run: Run) -> tuple[list[State], tuple[Tensor, ...]]:
    """Runs a message function over all blocks and merges its messages.

    ============  ======================  ===================================================
    tensor        shape                   meaning
    ============  ======================  ===================================================
    src           ``[num_own, ...]``      own rows, read at an edge's source
    dst           ``[num_dst, ...]``      own rows, read at an edge's destination
    edge          ``[num_edges, ...]``    one row per edge of `plan`
    whole         any                     read as they are
    learnable     any                     leaf tensors the function reads by itself
    states        ``[num_dst, ...]``      a finished merge state for each reduction
    edge outputs  ``[num_edges, ...]``    what the function computes per edge
    ============  ======================  ===================================================

    Saved for backward: the arguments and, per softmax, maximum and sum; never halo rows or messages
    (unless the run keeps the rows received, so that backward need not fetch them again).

    Communication: ``1 + num_softmax`` exchanges in forward; as many in backward, and one exchange
    of gradients if a source tensor needs one.

    Returns:
        The merge states and the edge outputs.
    """
    tensors = iter(_Replay.apply(run, *run.arguments))
    states = [tuple(islice(tensors, r.merge.num_tensors)) for r in run.program.reductions]
    return states, tuple(tensors)


@communicates
class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        reductions = run.program.reductions
        stats: list[SoftmaxStats] = []
        with no_autocast_cache():
            for _ in range(run.program.num_softmax):
                stats.append(_softmax_stats(run, stats))
            states, edge_outputs = _merge_chunks(run, stats)
        read = [s for r, s in zip(reductions, states, strict=True) if r.merge.reads_state]
        outputs = (*(t for state in states for t in state), *edge_outputs)

        ctx.has_stats = [s.max is not None for s in stats]
        of_softmax = (t for s in stats for t in (s.max, s.sum) if t is not None)
        run.save(ctx, *of_softmax, *(t for state in read for t in state))
        ctx.set_materialize_grads(False)
        others = (o for o in outputs if not (o.is_floating_point() or o.is_complex()))
        ctx.mark_non_differentiable(*others)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        run, rest = Run.saved(ctx)
        num_dst = run.loop.plan.shard.num_dst
        stats = [
            SoftmaxStats(num_dst, next(rest), next(rest)) if has else SoftmaxStats(num_dst)
            for has in ctx.has_stats
        ]
        merges = [r.merge for r in run.program.reductions]
        states = [tuple(islice(rest, m.num_tensors if m.reads_state else 0)) for m in merges]
        replayed = ReplayBackward(run, states, grads, stats)
        with run.surroundings.again(run.arguments.learnable):
            for k in reversed(range(len(stats))):
                replayed.find_row_sum(k)
            return None, *replayed.gradients(ctx.needs_input_grad[1:])


class _Reached(Exception):
    """Ends a message function that is run only up to a softmax."""


def _softmax_of(
    done: Sequence[SoftmaxStats], rows: slice, following: SoftmaxStats | None = None
) -> SoftmaxFn:
    """The softmaxes whose statistics are complete; the next one's logits go into `following`."""
    remaining = iter(done)

    def softmax(logits: Tensor, dst: Tensor) -> Tensor:
        stats = next(remaining, None)
        if stats is not None:
            return stats.alpha(logits, dst, rows)
        assert following is not None
        following.rows = rows
        following.step(logits, dst)
        raise _Reached

    return softmax


def _softmax_stats(run: Run, done: Sequence[SoftmaxStats]) -> SoftmaxStats:
    """Maximum and sum of the first softmax that is not in `done`."""
    plan = run.loop.plan
    stats = SoftmaxStats(plan.shard.num_dst)
    for chunk, edge_index, arguments in run.chunks():
        with suppress(_Reached):
            run.program.run(arguments, edge_index, _softmax_of(done, chunk.rows, stats))
        del arguments  # freed before the next chunk allocates
    stats.finish(plan.in_degree)
    return stats


def _merge_chunks(run: Run, stats: Sequence[SoftmaxStats]) -> tuple[list[State], list[Tensor]]:
    """The forward pass: merge states and edge outputs."""
    program, plan = run.program, run.loop.plan
    edge_outputs = [t.new_zeros(plan.num_edges, *t.shape[1:]) for t in program.edge_outputs]
    states = program.init_states(plan.shard.num_dst)
    for chunk, edge_index, arguments in run.chunks():
        messages, outputs = program.run(arguments, edge_index, _softmax_of(stats, chunk.rows))
        for target, output in zip(edge_outputs, outputs, strict=True):
            chunk.block.put(target, output)
        for r, state in zip(program.reductions, states, strict=True):
            rows = tuple(chunk.at_rows(t, r.dim) for t in state)
            r.merge.step(rows, messages[r.message], edge_index[1], r.dim)
        del arguments, messages, outputs  # freed before the next chunk allocates
    return states, edge_outputs
