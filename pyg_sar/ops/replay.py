"""The replay path: any message function, chunk by chunk of a block, recomputed in backward.

Forward runs the function without autograd and keeps only the merge state. Backward runs it again
with autograd and takes the gradient of a chunk alone with ``torch.autograd.grad`` (``.backward()``
would accumulate into parameters behind the caller's back).

A softmax over in-edges spans blocks: :mod:`pyg_sar.ops.online_softmax`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import communicates, once_differentiable, torch_apply
from pyg_sar.ops.chunks import Chunk, Computed, Run
from pyg_sar.ops.program import MessageReduction, SoftmaxFn, gradients_of, no_autocast_cache
from pyg_sar.ops.reductions import SoftmaxStats, State
from pyg_sar.shard.index_rows import add_rows_at, add_runs_at, rows_at


def replay(run: Run) -> tuple[list[State], tuple[Tensor, ...]]:
    """Runs a message function over all blocks and merges its messages.

    Gives a finished merge state ``[num_dst, ...]`` of every reduction, and the edge outputs
    ``[num_edges, ...]``.

    Saved for backward: the arguments; halo rows or messages only if the run keeps them.

    Communication: one exchange in forward; one in backward unless the run keeps anything, and one
    of gradients if a source tensor needs one.
    """
    tensors = iter(_Replay.apply(run, *run.arguments.inputs()))
    states = [tuple(islice(tensors, r.merge.num_tensors)) for r in run.program.reductions]
    return states, tuple(tensors)


@communicates
class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        reductions = run.program.reductions
        with no_autocast_cache():
            states, edge_outputs = _merge_chunks(run, ctx.needs_input_grad[1:])
        read = [s for r, s in zip(reductions, states, strict=True) if r.merge.reads_state]
        outputs = (*(t for state in states for t in state), *edge_outputs)

        run.save(ctx, *(t for state in read for t in state))
        ctx.set_materialize_grads(False)
        others = (o for o in outputs if not (o.is_floating_point() or o.is_complex()))
        ctx.mark_non_differentiable(*others)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        run, rest = Run.saved(ctx)
        merges = [r.merge for r in run.program.reductions]
        states = [tuple(islice(rest, m.num_tensors if m.reads_state else 0)) for m in merges]
        replayed = ReplayBackward(run, states, grads)
        with run.rng_and_autocast.again(run.arguments.learnable):
            return None, *replayed.gradients(ctx.needs_input_grad[1:])


def _no_softmax(logits: Tensor, dst: Tensor) -> Tensor:
    raise AssertionError('a softmax in a message that had none')


def _merge_chunks(run: Run, needs: Sequence[bool]) -> tuple[list[State], list[Tensor]]:
    """The forward pass: merge states and edge outputs."""
    program, plan = run.program, run.loop.plan
    edge_outputs = [t.new_zeros(plan.num_edges, *t.shape[1:]) for t in program.edge_outputs]
    states = program.init_states(plan.shard.num_dst)
    for chunk, edge_index, arguments in run.chunks():
        messages, outputs = run.forward(arguments, edge_index, _no_softmax, needs)
        for target, output in zip(edge_outputs, outputs, strict=True):
            chunk.block.put(target, output)
        for r, state in zip(program.reductions, states, strict=True):
            rows = tuple(chunk.at_rows(t, r.dim) for t in state)
            r.merge.step(rows, messages[r.message], edge_index[1], r.dim)
        del arguments, messages, outputs  # freed before the next chunk allocates
    return states, edge_outputs


class ReplayBackward:
    """Runs the function on one chunk after another with autograd and takes the chunk's gradients.

    `states` are the finished states of the reductions, as far as their gradients read them, and
    `grads` the gradients of the tensors of all states and of the edge outputs. `softmax` are the
    finished statistics of a softmax and ``r_i = sum over in-edges of alpha * d_alpha``.
    """

    def __init__(
        self,
        run: Run,
        states: Sequence[State],
        grads: Sequence[Tensor | None],
        softmax: tuple[SoftmaxStats, Tensor] | None = None,
    ) -> None:
        self.run, self.softmax = run, softmax
        rest = iter(grads)
        self.reductions: list[tuple[MessageReduction, State, Tensor | None]] = []
        for reduction, state in zip(run.program.reductions, states, strict=True):
            # The first tensor of a state takes a gradient.
            grad, *_ = islice(rest, reduction.merge.num_tensors)
            self.reductions.append((reduction, state, grad))
        self.grad_edge_outputs = list(rest)

    def gradients(self, needs: Sequence[bool]) -> list[Tensor | None]:
        """One pass for the gradients of all arguments that need one, in their order."""
        total = self.run.arguments.zeros(needs, but_src=True)
        targets = list(total)
        num_src = len(self.run.arguments.src)
        needs_src = [i for i in range(num_src) if needs[i]]
        out = [t for t in total[:num_src] if t is not None]
        for of_src, chunks in self.run.backward(out, needs, self._softmax):
            for i, rows in zip(needs_src, of_src, strict=True):
                targets[i] = rows.zero_()  # block by block, so all own rows, too
            for chunk, edge_index, computed in chunks:
                outputs, grads = self._outputs(chunk, edge_index, computed)
                gradients = gradients_of(outputs, grads, computed.arguments, needs)
                _add(targets, gradients, computed.arguments.counts, chunk, edge_index)
                del computed, outputs, grads, gradients  # freed before the next chunk allocates
        return total

    def _outputs(
        self, chunk: Chunk, edge_index: Tensor, computed: Computed
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The chunk's outputs that need a gradient, and their gradients."""
        outputs, gradients = [], []
        for number, message in enumerate(computed.messages):
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
        for output, grad in zip(computed.edge_outputs, self.grad_edge_outputs, strict=True):
            if grad is not None and output.requires_grad:
                outputs.append(output)
                gradients.append(chunk.block.take(grad))
        return outputs, gradients

    def _softmax(self, rows: slice) -> SoftmaxFn:
        if self.softmax is None:
            return _no_softmax
        stats, row_sum = self.softmax
        return lambda logits, dst: _Softmax.apply(logits, dst, stats, row_sum, rows)


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
